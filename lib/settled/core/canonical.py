"""Strict JSON and the one canonical text of a request.

What passes here is stored, hashed and parsed afresh for every callback, so nothing may change on the way: exact types
only, and two values that a reader could tell apart have two texts.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final, cast

SCHEME: Final = "json1:"
_SURROGATES: Final = range(0xD800, 0xE000)
_ALWAYS_RIGHT: Final = frozenset({bool, type(None)})
_TEXT: Final = frozenset({str})
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_LEVELS: Final = 8  # of containers that are judged by their types; what is nested deeper, as all that holds itself, is walked through
_DIGITS_ASKED_FROM_BITS: Final = 2000  # no interpreter's digit limit is below 640, which is 2126 bits


def _compact_encoder(*, sort_keys: bool) -> Callable[[object], str]:
    """Return what `JSONEncoder(sort_keys, compact, ensure_ascii=False, allow_nan=False).encode` does.

    The method makes its encoder in C anew at each call, which takes longer than to encode a small map: here it is made once.
    """
    plain = json.JSONEncoder(sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    chunks = make(None, plain.default, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(chunks(value, 0))


compact_json: Final = _compact_encoder(sort_keys=True)
_json_in_order: Final = _compact_encoder(sort_keys=False)
_SCAN: Final = cast("Callable[[str, int], tuple[Any, int]]", json.JSONDecoder().scan_once)  # type: ignore[attr-defined]


def parse_canonical(text: str) -> Any:
    """Parse a canonical text: no space stands around it, which `json.loads` looks for with two regular expressions."""
    return _SCAN(text, 0)[0]


def check_strict_json(value: object, name: str = "arguments") -> None:
    """Raise TypeError or ValueError with the path of the first thing in `value` that is not strict JSON.

    Strict JSON is exactly None, bool, int, finite float, str without lone surrogates, list, and dict with such str
    keys. Subclasses, tuples and cycles are refused: each of them would come back as something else.
    """
    _check(value, name, set())


def canonical_text(value: object, name: str = "value") -> str:
    """Return the canonical text of strict JSON. Raises TypeError or ValueError naming the path."""
    text = _text_by_types(value, compact_json) if _has_types_of_json(value, _LEVELS) else None
    if text is not None:
        return text
    check_strict_json(value, name)
    return compact_json(value)


def canonical_map(value: dict[str, Any], name: str) -> tuple[str, Callable[[], dict[str, Any]]]:
    """Return the canonical text of a map, and what gives a copy of the map as its text tells it. Raises as `canonical_text` does."""
    own = value.copy()  # what is checked is what is written, whoever changes `value` meanwhile
    if _has_types_of_json(own, 0):  # most maps hold no other container, and then nobody can change what is in a copy
        ordered = {key: own[key] for key in sorted(own)}
        text = _text_by_types(ordered, _json_in_order)
        if text is not None:
            return text, ordered.copy
    text = canonical_text(value, name)
    return text, partial(parse_canonical, text)


def fingerprint(text: str) -> str:
    """Return the fingerprint of a canonical text: the scheme id and SHA-256 in hex."""
    return SCHEME + hashlib.sha256(text.encode()).hexdigest()


def fingerprint_bytes(shown: str) -> bytes:
    """Return a fingerprint as it is stored: the hash alone, for there is one scheme."""
    return bytes.fromhex(shown.removeprefix(SCHEME))


def fingerprint_of(stored: bytes) -> str:
    """Return a stored fingerprint as it is shown."""
    return SCHEME + stored.hex()


def restrict(value: dict[str, Any], fields: Iterable[str] | None) -> dict[str, Any]:
    """Return the part of `value` that identifies the request. Raises ValueError for a listed field that is missing."""
    if fields is None:
        return value
    missing = [field for field in fields if field not in value]
    if missing:
        raise ValueError(f"identity field {missing[0]!r} is missing from the arguments. Nothing was stored.")
    return {field: value[field] for field in fields}


def parse_strict_json(text: str, name: str = "arguments") -> Any:
    """Parse JSON that people or other programs wrote: duplicate keys, NaN and lone surrogates are refused.

    Raises ValueError.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    check_strict_json(value, name)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key!r}")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _has_types_of_json(value: object, levels: int) -> bool:
    """Whether all types in a value are exactly those of JSON, in `levels` containers within the outermost one at most."""
    inner: Collection[object]
    if type(value) is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        inner = value.values()
    elif type(value) is list:
        inner = value
    else:
        return type(value) in _PLAIN
    if _PLAIN.issuperset(map(type, inner)):
        return True
    return levels > 0 and all(_has_types_of_json(one, levels - 1) for one in inner if type(one) not in _PLAIN)


def _text_by_types(value: object, write: Callable[[object], str]) -> str | None:
    """Return the text of what has the types of JSON; None where a number in it has no text, or a character no bytes."""
    try:
        text = write(value)
        text.encode()
    except ValueError:
        return None
    return text


def _check(value: object, path: str, above: set[int]) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path)  # type: ignore[arg-type]
    elif value is None or kind is bool:
        return
    elif kind is int:
        _check_digits(value, path)  # type: ignore[arg-type]
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise ValueError(f"{path} is {value!r}, which is not JSON")
    elif kind is dict or kind is list:
        _check_container(value, path, above)  # type: ignore[arg-type]
    else:
        raise TypeError(f"{path} is of type {kind.__name__}, which is not strict JSON")


def _needs_a_look(value: object) -> bool:
    """Whether something can be wrong with `value`. Of most values nothing can, and then nobody needs the path to them."""
    if type(value) is str:
        return not value.isascii()
    if type(value) is int:
        return value.bit_length() > _DIGITS_ASKED_FROM_BITS
    return type(value) not in _ALWAYS_RIGHT


def _check_container(value: dict[object, object] | list[object], path: str, above: set[int]) -> None:
    if id(value) in above:
        raise ValueError(f"{path} contains itself")
    if len(above) >= 200:
        raise ValueError(f"{path} is nested too deeply")
    above.add(id(value))
    if isinstance(value, dict):
        for key, child in value.items():
            if type(key) is not str:
                raise TypeError(f"{path} has a key of type {type(key).__name__}, {key!r}: keys must be str")
            if not key.isascii():
                _check_text(key, path)
            if _needs_a_look(child):
                _check(child, f"{path}.{key}", above)
    else:
        for index, child in enumerate(value):
            if _needs_a_look(child):
                _check(child, f"{path}[{index}]", above)
    above.discard(id(value))


def _check_digits(value: int, path: str) -> None:
    if value.bit_length() > _DIGITS_ASKED_FROM_BITS:
        try:
            str(value)
        except ValueError as error:  # beyond the interpreter's digit limit, which is also that of every reader
            raise ValueError(f"{path} has too many digits: {error}") from error


def _check_text(value: str, path: str) -> None:
    if not value.isascii() and any(ord(character) in _SURROGATES for character in value):
        raise ValueError(f"{path} holds a lone surrogate, which is not Unicode text")
