"""Strict JSON and the one text of a request."""

import datetime
import enum
import hashlib
import json
import sys
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from settled.core.canonical import canonical_map, canonical_text, check_strict_json, fingerprint, parse_strict_json, restrict

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Money(float):
    pass


class Name(str):
    __slots__ = ()


@dataclass
class Item:
    price: int


class Numbers(list[int]):
    pass


WRONG_TYPES = {
    "tuple": (1, 2), "set": {1}, "bytes": b"x", "decimal": Decimal("1.5"), "enum": Colour.RED, "int enum": Level.HIGH,
    "dataclass": Item(1), "date": datetime.date(2027, 1, 1), "uuid": uuid.UUID(int=1), "dict subclass": OrderedDict(a=1),
    "list subclass": Numbers([1]), "str subclass": Name("x"), "float subclass": Money(1.0), "object": object(),
    "int key": {1: 0}, "bool key": {True: 0}, "none key": {None: 0}, "str-subclass key": {Name("x"): 0},
}  # fmt: skip
WRONG_VALUES = {
    "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "lone surrogate": "a\ud800", "surrogate key": {"\udfff": 1},
    "too many digits": 10 ** (sys.get_int_max_str_digits() + 1),
}  # fmt: skip


@pytest.mark.promise("P08", "D19")
@pytest.mark.parametrize("wrong", WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
def test_a_value_of_another_type_is_a_type_error_that_names_its_path(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"items\[2\]\.price"):
        check_strict_json({"items": [1, 2, {"price": wrong}]})


@pytest.mark.promise("P08", "D19")
@pytest.mark.parametrize("wrong", WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_a_value_that_json_cannot_hold_is_a_value_error_that_names_its_path(wrong: object) -> None:
    for refuse in (check_strict_json, canonical_text):
        with pytest.raises(ValueError, match=r"items\[2\]\.price"):
            refuse({"items": [1, 2, {"price": wrong}]})


@pytest.mark.promise("P08", "D19")
def test_a_cycle_is_refused_and_a_shared_value_is_not() -> None:
    cycle: dict[str, Any] = {"a": [1]}
    cycle["a"].append(cycle)
    with pytest.raises(ValueError, match=r"a\[1\] contains itself"):
        check_strict_json(cycle)
    shared = [1]
    assert canonical_text({"a": shared, "b": shared}) == '{"a":[1],"b":[1]}'


def test_what_is_nested_too_deeply_is_refused_whoever_wrote_it() -> None:
    deep: list[Any] = []
    for _ in range(250):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        check_strict_json(deep)
    for depth in (250, 1_000_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_strict_json("[" * depth + "]" * depth)


@pytest.mark.promise("P07", "D20")
def test_the_fingerprint_is_sha256_over_the_one_canonical_text_with_a_scheme_id() -> None:
    text = canonical_text({"b": 1, "a": [1.0, True, "1", -0.0, None, "é"]})
    assert text == '{"a":[1.0,true,"1",-0.0,null,"é"],"b":1}'
    assert fingerprint(text) == "json1:de0d5f181327fdf4467dc4d7bdf30f82724ba02ee9ad5537941f97d51bdd897f"
    assert fingerprint(text) == "json1:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.promise("P07", "D20")
@pytest.mark.parametrize("different", [(1, 1.0, True, "1"), (0.0, -0.0, 0, False), ("é", "e\u0301"), (None, "null", "")])
def test_values_that_a_reader_can_tell_apart_have_different_texts(different: tuple[object, ...]) -> None:
    assert len({fingerprint(canonical_text({"x": value})) for value in different}) == len(different)


@pytest.mark.promise("P07", "D20")
@pytest.mark.parametrize(
    ("number", "text"),
    [(10.0, "10.0"), (10, "10"), (-0.0, "-0.0"), (0, "0"), (1e-7, "1e-07"), (1e20, "1e+20"), (1e21, "1e+21"), (0.1, "0.1")],
)
def test_a_number_is_written_as_python_writes_it_and_not_as_rfc_8785_does(number: float, text: str) -> None:
    assert canonical_text({"a": number}) == f'{{"a":{text}}}'


@pytest.mark.promise("P07", "D20")
@pytest.mark.parametrize("number", [2**53 - 1, 2**53, 2**54, -(2**53), 2**63, 2**64, 2**70, 10**400])
def test_a_big_integer_stays_exact(number: int) -> None:
    again = parse_strict_json(canonical_text({"n": number}))["n"]
    assert type(again) is int
    assert again == number


def test_keys_that_are_equal_only_after_normalisation_are_two_keys() -> None:
    composed, decomposed = "\u00c9", "E\u0301"
    value = {composed: 1, decomposed: 2}
    assert parse_strict_json(canonical_text(value)) == value
    assert canonical_text(value) == canonical_text(dict(reversed(value.items())))


@given(VALUES)
def test_parsing_the_text_gives_the_value_back_and_the_same_text(value: Any) -> None:
    text = canonical_text(value)
    again = parse_strict_json(text)
    assert told_apart(again) == told_apart(value)
    assert canonical_text(again) == text


@settings(max_examples=200)
@given(VALUES, VALUES)
def test_two_values_have_one_text_only_if_they_are_the_same_to_a_reader(one: Any, other: Any) -> None:
    assert (canonical_text(one) == canonical_text(other)) is (told_apart(one) == told_apart(other))


@given(st.dictionaries(TEXTS, LEAVES, max_size=6), st.randoms())
def test_the_order_of_keys_changes_nothing(value: dict[str, Any], random: Any) -> None:
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert canonical_text(dict(shuffled)) == canonical_text(value)


ODD_TEXTS = st.text(max_size=4) | st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2)
WRONG = WRONG_TYPES | WRONG_VALUES | {"long and negative": -(10**5000), "as long as can be": 10**4299, "longer than a look": 10**700}
ODD_LEAVES = LEAVES | ODD_TEXTS | st.sampled_from(sorted(WRONG)).map(lambda name: WRONG[name])  # by name: some have no text
ODD_KEYS = ODD_TEXTS | st.sampled_from([1, True, None, 1.5, Name("x"), Level.HIGH, (1, 2)])
ODD_VALUES = st.recursive(ODD_LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(ODD_KEYS, one, max_size=3), max_leaves=6)


def slow_text(value: Any) -> str:
    """Return what a look at each value by itself and an encoder of its own make of a value."""
    check_strict_json(value, "arguments")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def slowly(value: Any) -> Any:
    """Return that text of a map, and the map as its text tells it."""
    text = slow_text(value)
    return text, list(map(told_apart, json.loads(text).items()))


def fast_text(value: Any) -> str:
    return canonical_text(value, "arguments")


def at_once(value: Any) -> Any:
    text, copy = canonical_map(value, "arguments")
    return text, list(map(told_apart, copy().items()))


def verdict(of: Any, value: Any) -> Any:
    try:
        return of(value)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.promise("P08", "D19", "P07", "D20")
@settings(max_examples=500)
@given(st.dictionaries(ODD_TEXTS, ODD_LEAVES, max_size=3) | st.dictionaries(ODD_KEYS, ODD_VALUES, max_size=3))
def test_a_map_has_the_text_the_copies_and_the_refusals_that_a_look_at_each_value_gives(value: dict[Any, Any]) -> None:
    assert verdict(at_once, value) == verdict(slowly, value)


@pytest.mark.promise("P08", "D19", "P07", "D20")
@settings(max_examples=300)
@given(ODD_VALUES)
def test_a_value_has_the_text_and_the_refusal_that_a_look_at_each_value_gives(value: Any) -> None:
    assert verdict(fast_text, value) == verdict(slow_text, value)


@pytest.mark.promise("P08", "D19")
@pytest.mark.parametrize("depth", [*range(12), 198, 199, 200, 250])
@pytest.mark.parametrize("wrong", [1, "\ud800", (1, 2), float("nan")], ids=["right", "surrogate", "tuple", "nan"])
def test_how_deep_a_value_is_changes_no_refusal_of_it(depth: int, wrong: object) -> None:
    for around in (lambda one: [1, one], lambda one: {"k": one, "z": None}):
        value: Any = wrong
        for _ in range(depth):
            value = around(value)  # type: ignore[no-untyped-call]
        value = {"a": value}
        assert verdict(at_once, value) == verdict(slowly, value)
        assert verdict(fast_text, value) == verdict(slow_text, value)


@pytest.mark.promise("P08", "D19")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_map_of_plain_values_is_refused_as_a_look_at_each_value_refuses_it(wrong: Any) -> None:
    for value in [{"a": 1, "b": wrong}, wrong]:
        if type(value) is dict:
            assert verdict(at_once, value) == verdict(slowly, value)


@pytest.mark.promise("P08", "D19")
def test_a_map_that_holds_itself_is_refused_by_its_path() -> None:
    cycle: dict[str, Any] = {"a": 1}
    cycle["b"] = {"c": cycle}
    assert verdict(at_once, cycle) == (ValueError, "arguments.b.c contains itself")
    wide: list[Any] = []
    wide += [wide] * 1000  # whoever followed every way as far as it is judged by types would never end
    assert verdict(at_once, {"a": wide}) == (ValueError, "arguments.a[0] contains itself")


@pytest.mark.promise("P07", "D20")
@pytest.mark.parametrize("value", [{"b": 1, "a": "x"}, {"b": [1], "a": {"c": 2}}], ids=["flat", "nested"])
def test_a_copy_of_a_map_is_nobody_elses(value: dict[str, Any]) -> None:
    text, copy = canonical_map(value, "arguments")
    changed = copy()
    changed["a"] = changed["new"] = 3
    value["a"] = "changed since"
    assert list(copy()) == ["a", "b"]
    assert canonical_text(copy()) == text
    if text.startswith('{"a":{'):
        copy()["a"]["c"] = 4
        assert canonical_text(copy()) == text


REFUSED_TEXTS = {
    "duplicate key": ('{"a": 1, "b": {"c": 1, "c": 2}}', "duplicate key 'c'"),
    "duplicate key by escape": (r'{"a": 1, "\u0061": 2}', "duplicate key 'a'"),
    "NaN": ('{"a": NaN}', "NaN is not JSON"),
    "Infinity": ("[-Infinity]", "-Infinity is not JSON"),
    "overflow": ('{"a": [1e999]}', r"a\[0\] is inf"),
    "lone surrogate": (r'{"a": "\ud800"}', "lone surrogate"),
    "surrogate key": (r'{"\udc00": 1}', "lone surrogate"),
    "trailing text": ("{} {}", "Extra data"),
    "empty": ("", "Expecting value"),
    "byte order mark": ("\ufeff{}", "BOM"),
    "single quotes": ("{'a': 1}", "property name"),
    "too many digits": ("9" * 5000, "digits"),
}


@pytest.mark.parametrize(("text", "says"), REFUSED_TEXTS.values(), ids=REFUSED_TEXTS.keys())
def test_text_of_others_is_refused_where_it_is_not_strict_json(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_strict_json(text)


def test_a_surrogate_pair_is_one_character_and_passes() -> None:
    assert parse_strict_json(r'"\ud83d\ude00"') == "😀"


@pytest.mark.promise("S13")
def test_identity_fields_restrict_what_is_fingerprinted() -> None:
    arguments = {"invoice_id": "INV-1", "amount": 5, "note": "as told by a model"}
    assert restrict(arguments, ("invoice_id", "amount")) == {"invoice_id": "INV-1", "amount": 5}
    assert restrict(arguments, None) is arguments
    with pytest.raises(ValueError, match="'currency' is missing"):
        restrict(arguments, ("invoice_id", "currency"))


def told_apart(value: Any) -> Any:
    """Return a form in which two values are equal only if JSON can tell that they are: 1, 1.0, True and -0.0 differ."""
    if isinstance(value, dict):
        return "map", frozenset((key, told_apart(child)) for key, child in value.items())
    if isinstance(value, list):
        return "list", tuple(told_apart(child) for child in value)
    return type(value).__name__, json.dumps(value)
