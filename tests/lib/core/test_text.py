"""Text that others wrote: bounded, on one line, without control or direction marks."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.core.text import MESSAGE_UNAVAILABLE, VALUE_UNAVAILABLE, escape_controls, make_redactor, one_line, safe_repr, safe_str

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nforged row\u202eevil\u2066x\x9b31m\x00\ud800"


class Shouts(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Lies(Exception):
    __str__ = lambda self: 3  # type: ignore[assignment,return-value]  # noqa: E731 - what a careless author does


class Sly(str):
    def __str__(self) -> "Sly":
        return self

    def __len__(self) -> int:
        raise RuntimeError("never asked")


@pytest.mark.promise("S129")
def test_no_control_direction_or_surrogate_character_survives_escaping() -> None:
    shown = escape_controls(HOSTILE)
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Cf") for character in shown)
    assert "\\x1b]0;owned\\x07" in shown
    assert "\\u202e" in shown
    assert "\\ud800" in shown
    assert "\\r\\n" in shown
    shown.encode("utf-8")


def test_text_of_people_is_left_as_it_is() -> None:
    for text in ("", "Müller & Söhne", "支払い済み", "שלום", "👩‍🚀 50 €", "C:\\temp"):
        assert escape_controls(text) == text
        assert one_line(text, 100) == text


def test_line_breaks_become_one_space_so_that_nothing_forges_a_row() -> None:
    assert one_line("  refused\r\n\r\n\tby the bank\u2028now\n", 100) == "refused by the bank now"


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 20, 500])
def test_a_cut_line_is_at_most_the_limit_and_ends_with_an_ellipsis(limit: int) -> None:
    line = one_line("\x1b[2J" * 250_000, limit)
    assert len(line) <= limit
    assert line.endswith("…")
    assert re.fullmatch(r"(\\x1b|\[|2|J)*…", line), "no escape is cut in two"


def test_a_line_of_exactly_the_limit_is_whole() -> None:
    assert one_line("a" * 10, 10) == "a" * 10
    assert one_line("a" * 11, 10) == "a" * 9 + "…"


def test_a_limit_below_one_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        one_line("x", 0)


@given(st.text(alphabet=st.characters(), max_size=200), st.integers(min_value=1, max_value=60))
def test_one_line_keeps_its_promise_for_any_text(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert escape_controls(line) == line
    line.encode("utf-8")


def test_a_message_that_cannot_be_had_never_raises() -> None:
    assert safe_str(Shouts()) == MESSAGE_UNAVAILABLE
    assert safe_str(Lies()) == MESSAGE_UNAVAILABLE
    assert safe_repr(type("Hidden", (), {"__repr__": lambda self: 1 / 0})()) == VALUE_UNAVAILABLE


def test_a_message_is_an_exact_str_even_where_its_author_returned_a_subclass() -> None:
    assert type(safe_str(Sly("text"))) is str
    assert safe_str(ValueError("plain")) == "plain"


def test_redaction_masks_every_match_of_every_pattern() -> None:
    redact = make_redactor([re.compile(r"sk_live_\w+"), re.compile(r"(?i)bearer \S+")])
    assert redact("Bearer abc, then sk_live_1 and sk_live_2") == "*** then *** and ***"
