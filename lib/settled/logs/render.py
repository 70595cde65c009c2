"""Render one event as one line, for programs (JSON) or for people.

A line is at most LINE_BYTES_MAX bytes: a pipe takes so much in one piece, so lines of several processes do not mix. What does not
fit is shortened and then left out, largest field first, and the line says which.
"""

import json
import re
from collections.abc import Callable
from typing import Final

from settled.core.text import ELLIPSIS
from settled.logs.plain import JsonValue

LINE_BYTES_MAX: Final = 4096  # PIPE_BUF on Linux
SHORT_MAX: Final = 200
LEFT_OUT_NAMED_MAX: Final = 5
HEAD: Final = ("time", "level", "event", "logger")
_BARE: Final = re.compile(r"[^\s\"'=\\]+")
_COLORS: Final = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}

Render = Callable[[dict[str, JsonValue]], str]


def render_json(fields: dict[str, JsonValue]) -> str:
    """Return the event as one JSON object. ASCII only, so that every stream can encode it."""
    return json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def render_console(fields: dict[str, JsonValue], *, colors: bool = False) -> str:
    """Return the event as time, level, name and `name=value` pairs."""
    level = str(fields.get("level", ""))
    shown = f"{level:<8}"
    if colors and level in _COLORS:
        shown = f"\x1b[{_COLORS[level]}m{shown}\x1b[0m"
    pairs = [f"{_pair_text(name)}={_pair_text(value)}" for name, value in fields.items() if name not in HEAD]
    return " ".join([str(fields.get("time", "")), shown, str(fields.get("event", "")), *pairs])


def fit(render: Render, fields: dict[str, JsonValue], bytes_max: int = LINE_BYTES_MAX) -> str:
    """Return the line; if it is too long, with its long texts shortened and then its largest fields left out, until it fits."""
    line = render(fields)
    if _fits(line, bytes_max):
        return line
    fields = {name: _shortened(value) for name, value in fields.items()}
    line = render(fields)
    by_size = sorted((name for name in fields if name not in HEAD), key=lambda name: len(repr(fields[name])))
    left_out: list[str] = []
    while by_size and not _fits(line, bytes_max):
        left_out.append(by_size.pop())
        del fields[left_out[-1]]
        line = render({**fields, "left_out": ",".join(left_out[:LEFT_OUT_NAMED_MAX]), "left_out_count": len(left_out)})
    return line


def _fits(line: str, bytes_max: int) -> bool:
    return len(line.encode("utf-8", "backslashreplace")) < bytes_max  # one byte is the newline's


def _shortened(value: JsonValue) -> JsonValue:
    return value[:SHORT_MAX] + ELLIPSIS if isinstance(value, str) and len(value) > SHORT_MAX else value


def _pair_text(value: JsonValue) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
