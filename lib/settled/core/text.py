"""Make text that others wrote harmless to show: bounded, on one line, without control or direction marks.

Nothing here raises because of what the text or the object holds. The caller redacts before it cuts: half a secret matches no pattern.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

ELLIPSIS: Final = "…"
MASK: Final = "***"
MESSAGE_UNAVAILABLE: Final = "error message unavailable"
VALUE_UNAVAILABLE: Final = "value unavailable"

# C0, DEL and C1; the separators that some viewers break lines at; everything that turns the direction of writing; lone surrogates,
# which no UTF-8 file or terminal can take; the byte order mark; language tags, which are invisible.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LOOK_AHEAD: Final = 8  # how many times the limit is looked at, so that whitespace that folds away does not hide the text after it


def escape_controls(text: str) -> str:
    """Return `text` with every character that could move a cursor, a line or the writing direction written as an escape."""
    return _UNSAFE.sub(_escaped, text)


def one_line(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters: runs of white space are one space, an ellipsis marks what was cut.

    An escape is never cut in two. Raises ValueError for a limit below 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1 character, not {limit}")
    head = text[: limit * _LOOK_AHEAD]
    folded = " ".join(head.split())
    whole = escape_controls(folded[: limit + 1])
    if len(text) == len(head) and len(folded) <= limit and len(whole) <= limit:
        return whole
    return _cut(folded, limit - len(ELLIPSIS)) + ELLIPSIS


def safe_str(error: object) -> str:
    """Return `str(error)` as an exact str, or a fixed sentence where `__str__` raises or lies."""
    try:
        return str.__str__(str(error))
    except BaseException:  # noqa: BLE001 - a message must never replace the outcome it describes, whatever its author raises
        return MESSAGE_UNAVAILABLE


def safe_repr(value: object) -> str:
    """Return `repr(value)` as an exact str, or a fixed stand-in where `__repr__` raises or lies."""
    try:
        return str.__str__(repr(value))
    except BaseException:  # noqa: BLE001 - as in safe_str
        return VALUE_UNAVAILABLE


def make_redactor(patterns: Sequence[re.Pattern[str]]) -> Callable[[str], str]:
    """Return the function that masks every match of every pattern. Use it before anything is cut."""
    fixed = tuple(patterns)

    def redact(text: str) -> str:
        for pattern in fixed:
            text = pattern.sub(MASK, text)
        return text

    return redact


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _cut(text: str, limit: int) -> str:
    pieces: list[str] = []
    used = 0
    for character in text:
        piece = escape_controls(character)
        used += len(piece)
        if used > limit:
            break
        pieces.append(piece)
    return "".join(pieces)
