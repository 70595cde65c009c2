"""Probe answers and how evidence composes."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.core.evidence import NO_OUTPUT, ProbeResult, ProbeStatus, aggregate, check_caller_map, compose
from settled.core.words import Outcome

C, F, U = Outcome.CONFIRMED, Outcome.FAILED, Outcome.UNKNOWN
OUTCOMES = st.sampled_from(Outcome)

COMPOSED = {
    (C, None): (C, False), (C, C): (C, False), (C, F): (U, True), (C, U): (C, False),
    (F, None): (F, False), (F, C): (U, True), (F, F): (F, False), (F, U): (F, False),
    (U, None): (U, False), (U, C): (C, False), (U, F): (F, False), (U, U): (U, False),
}  # fmt: skip


@pytest.mark.promise("D03")
@pytest.mark.parametrize(("pair", "composed"), COMPOSED.items(), ids=lambda value: str(value))
def test_the_outcome_is_composed_of_execution_and_verification(
    pair: tuple[Outcome, Outcome | None], composed: tuple[Outcome, bool]
) -> None:
    assert compose(*pair) == composed


@pytest.mark.promise("D03")
def test_the_table_of_compositions_is_complete() -> None:
    assert set(COMPOSED) == set(itertools.product(Outcome, (None, *Outcome)))
    assert compose(None, None) == (None, False)


@pytest.mark.promise("D08")
@pytest.mark.parametrize(
    ("outcomes", "together"),
    [((), None), ((F,), F), ((F, F), F), ((U, F), U), ((F, U), U), ((U, C, F), C), ((C, F), C), ((C, U), C), ((U,), U), ((C,), C)],
)
def test_evidence_aggregates_over_attempts(outcomes: tuple[Outcome, ...], together: Outcome | None) -> None:
    assert aggregate(outcomes) is together


@given(st.none() | OUTCOMES, st.none() | OUTCOMES)
def test_composing_is_commutative_and_idempotent(one: Outcome | None, other: Outcome | None) -> None:
    assert compose(one, other) == compose(other, one)
    assert compose(one, one) == (one, False)


@given(st.lists(OUTCOMES, max_size=6), st.lists(OUTCOMES, max_size=6), st.randoms())
def test_aggregating_does_not_depend_on_order_grouping_or_repetition(one: list[Outcome], other: list[Outcome], random: Any) -> None:
    both = one + other
    shuffled = both + both[: len(both) // 2]
    random.shuffle(shuffled)
    assert aggregate(shuffled) is aggregate(both)
    grouped = [outcome for outcome in (aggregate(one), aggregate(other)) if outcome is not None]
    assert aggregate(grouped) is aggregate(both)


@given(st.lists(OUTCOMES, min_size=1, max_size=6), OUTCOMES)
def test_more_evidence_never_turns_unknown_into_failed_nor_hides_a_confirmation(outcomes: list[Outcome], more: Outcome) -> None:
    before, after = aggregate(outcomes), aggregate([*outcomes, more])
    if before is U:
        assert after in (U, C)
    if before is C:
        assert after is C


CONSTRUCTORS: dict[str, Callable[..., ProbeResult]] = {
    "committed": ProbeResult.committed,
    "not_committed": ProbeResult.not_committed,
    "pending": ProbeResult.pending,
    "unknown": ProbeResult.unknown,
}


@pytest.mark.promise("D34")
@pytest.mark.parametrize(
    ("build", "facts", "error"),
    [
        *((name, {"healthy": 1}, TypeError) for name in CONSTRUCTORS),
        *((name, {"healthy": None}, TypeError) for name in CONSTRUCTORS),
        *((name, {"evidence": []}, TypeError) for name in CONSTRUCTORS),
        *((name, {"evidence": "status"}, TypeError) for name in CONSTRUCTORS),
        *((name, {"evidence": {"x": float("nan")}}, ValueError) for name in CONSTRUCTORS),
        *((name, {"evidence": {"x": object()}}, TypeError) for name in CONSTRUCTORS),
        ("not_committed", {"terminal": "yes"}, TypeError),
        ("not_committed", {"terminal": 1}, TypeError),
        *(
            (name, {"reference": wrong}, error)
            for name in ("committed", "not_committed", "pending")
            for wrong, error in (("", ValueError), (" ", ValueError), (" x", ValueError), ("x\n", ValueError), (7, TypeError))
        ),
        *(
            ("committed", {"provider_operation_id": wrong}, error)
            for wrong, error in (("", ValueError), ("\t", ValueError), ("x ", ValueError), (7, TypeError))
        ),
    ],
)
def test_an_answer_has_exact_types(build: str, facts: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CONSTRUCTORS[build](**facts)


@pytest.mark.promise("D34")
def test_health_that_nobody_stated_is_false_except_for_what_was_found() -> None:
    assert {name: build().healthy for name, build in CONSTRUCTORS.items()} == {
        "committed": True, "not_committed": False, "pending": False, "unknown": False,
    }  # fmt: skip


@pytest.mark.promise("D35")
@pytest.mark.parametrize(
    ("build", "fact"),
    [
        *((name, "output") for name in ("not_committed", "pending", "unknown")),
        *((name, "provider_operation_id") for name in ("not_committed", "pending", "unknown")),
        *((name, "terminal") for name in ("committed", "pending", "unknown")),
    ],
)
def test_a_contradictory_answer_cannot_be_built(build: str, fact: str) -> None:
    with pytest.raises(TypeError):
        CONSTRUCTORS[build](**{fact: True})


@pytest.mark.promise("D35")
@pytest.mark.parametrize(
    "facts",
    [
        {"status": ProbeStatus.COMMITTED, "terminal": True},
        {"status": ProbeStatus.PENDING, "terminal": True},
        {"status": ProbeStatus.NOT_COMMITTED, "output_text": "1"},
        {"status": ProbeStatus.UNKNOWN, "provider_operation_id": "pay-1"},
        {"status": ProbeStatus.PENDING, "storable": False},
        {"status": ProbeStatus.COMMITTED, "error_class": "OSError"},
        {"status": "committed"},
        {"status": ProbeStatus.NOT_COMMITTED, "terminal": 1},
        {"status": ProbeStatus.NOT_COMMITTED, "healthy": "yes"},
        {"status": ProbeStatus.UNKNOWN, "evidence_text": {}},
    ],
)
def test_not_even_the_bare_class_builds_one(facts: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        ProbeResult(**facts)


@pytest.mark.promise("D36")
def test_a_bare_not_there_is_neither_terminal_nor_healthy() -> None:
    answer = ProbeResult.not_committed()
    assert (answer.status, answer.terminal, answer.healthy) == (ProbeStatus.NOT_COMMITTED, False, False)


def test_an_output_that_is_not_strict_json_makes_the_answer_unstorable_and_null_is_an_output() -> None:
    assert ProbeResult.committed(output={1, 2}).storable is False
    assert ProbeResult.committed(output={"b": [1, None], "a": "é"}).output_text == '{"a":"é","b":[1,null]}'
    assert ProbeResult.committed(output=None).output_text == "null"
    assert ProbeResult.committed().output_text is None
    assert ProbeResult.committed(output=NO_OUTPUT) == ProbeResult.committed()


@pytest.mark.promise("P18", "D29")
def test_an_evidence_map_is_copied_and_read_only() -> None:
    given_by_the_caller: dict[str, Any] = {"status": "confirmed", "rows": [1]}
    answer = ProbeResult.unknown(evidence=given_by_the_caller)
    given_by_the_caller["rows"].append(2)
    given_by_the_caller["more"] = True
    assert dict(answer.evidence) == {"status": "confirmed", "rows": [1]}
    with pytest.raises(TypeError):
        answer.evidence["status"] = "rejected"  # type: ignore[index]
    with pytest.raises(AttributeError):
        answer.healthy = True  # type: ignore[misc]


@pytest.mark.promise("D29")
@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ({"x": object()}, TypeError, r"metadata\.x"),
        ({1: 1}, TypeError, "keys must be str"),
        ([("x", 1)], TypeError, "must be a map"),
        ({"settled.status": "confirmed"}, ValueError, "reserved"),
        ({"x": "\ud800"}, ValueError, "surrogate"),
        ({"x": "é" * 60}, ValueError, "longer than 100 bytes"),
    ],
)
def test_a_map_of_the_caller_is_strict_bounded_and_shadows_no_fact(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_caller_map(value, "metadata", 100)


def test_a_map_of_the_caller_may_hold_any_other_key() -> None:
    assert check_caller_map({"settled": 1, "nested": {"settled.x": 1}}, "metadata", 100) == '{"nested":{"settled.x":1},"settled":1}'
    assert check_caller_map(None, "metadata", 100) is None


ANSWERS = [
    ProbeResult.committed(reference="r", provider_operation_id="pay-1", output={"a": [1, None]}, evidence={"page": 2}),
    ProbeResult.committed(output=None, healthy=False),
    ProbeResult.committed(output={1}),
    ProbeResult.not_committed(terminal=True, healthy=True, reference="r"),
    ProbeResult.not_committed(),
    ProbeResult.pending(reference="r"),
    ProbeResult.unknown(evidence={}),
    ProbeResult.failed("TimeoutError"),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.status))
def test_an_answer_survives_the_way_to_another_process(answer: ProbeResult) -> None:
    assert ProbeResult.from_json(answer.to_json()) == answer


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, {"status": "maybe"}, {"status": "committed", "extra": 1}, {"status": "committed", "healthy": 1},
        {"status": "pending", "terminal": True}, {"status": "committed", "reference": " "}, {"status": "unknown", "evidence_text": "[]"},
        {"status": "unknown", "evidence_text": '{"a":NaN}'}, {"status": "committed", "output_text": "{"}, {"status": None},
    ],
)  # fmt: skip
def test_what_another_process_says_is_taken_only_if_it_is_an_answer(data: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        ProbeResult.from_json(data)


def test_a_probe_that_failed_keeps_the_class_of_its_error() -> None:
    assert ProbeResult.failed("TimeoutError").error_class == "TimeoutError"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "not a probe answer"),
        ({"status": "unknown", "confirmed": True}, "not a probe answer"),
        ({}, "'' is not a valid ProbeStatus"),
        ({"status": "committed", "output_text": '{"a":"\\ud800"}'}, "output"),
        ({"status": "unknown", "evidence_text": '{"a":"\\ud800"}'}, "evidence"),
        ({"status": "unknown", "evidence_text": "[]"}, "evidence must be a map"),
    ],
)
def test_what_is_no_answer_is_refused_by_what_is_wrong_with_it(data: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{says}"):
        ProbeResult.from_json(data)


def test_no_output_says_what_it_is() -> None:
    assert repr(NO_OUTPUT) == "NO_OUTPUT"


def test_an_answer_with_every_field_can_be_read() -> None:
    every = {name: getattr(ANSWERS[5], name) for name in ProbeResult.__slots__}
    assert ProbeResult.from_json(every) == ANSWERS[5]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ProbeResult(status="unknown"), "status must be a ProbeStatus, not 'unknown'"),
        (lambda: ProbeResult.unknown(healthy=1), "healthy must be True or False, not 1"),
        (lambda: ProbeResult.pending(reference=7), "reference must be a str, not int"),
        (lambda: ProbeResult.pending(reference=" "), "reference is blank or padded: ' '"),
        (lambda: ProbeResult(status=ProbeStatus.UNKNOWN, evidence_text=7), "evidence_text must be a str, not int"),
        (lambda: ProbeResult(status=ProbeStatus.UNKNOWN, output_text="1"),
         "only a committed answer has an output or a provider operation ID, not unknown"),
        (lambda: ProbeResult(status=ProbeStatus.UNKNOWN, terminal=True), "only an absence can be terminal, not unknown"),
        (lambda: ProbeResult(status=ProbeStatus.PENDING, error_class="E"), "only an unknown answer has an error class, not pending"),
        (lambda: ProbeResult.unknown(evidence=7), "evidence must be a map, not int"),
        (lambda: check_caller_map({"a": 1}, "metadata", 6), "metadata is longer than 6 bytes"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(make: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(says)}$"):
        make()


def test_a_map_may_be_as_long_as_its_bound() -> None:
    assert check_caller_map({"a": 1}, "metadata", 7) == '{"a":1}'
