"""Show answers: tables for people, JSON for programs, on standard output and nothing else there.

Promise: text that others wrote reaches no terminal raw, and a reader that goes away never changes how a command ends.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from settled.core.moment import SECOND_US
from settled.core.text import escape_controls, one_line
from settled_cli.invocation import Invocation

Row = Mapping[str, Any]
_NONE: Final = "-"
_VALUE_MAX: Final = 2000  # of one value in a table that shows a single thing; programs get the whole


def emit(invocation: Invocation, answer: Row | Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Print one thing or a list of things. `columns` are the columns of a table of things, in order."""
    if invocation.output == "json":
        write(json.dumps(answer, sort_keys=True, indent=2, default=_plain) + "\n")
    elif invocation.output == "jsonl":
        things = [answer] if isinstance(answer, Mapping) else answer
        write("".join(to_line(thing) for thing in things))
    elif isinstance(answer, Mapping):
        _show_one(answer)
    else:
        show_table(answer, columns)


def emit_lines(things: Iterable[Row]) -> None:
    """Print things as JSON lines while they come; stop when nobody reads any more."""
    for thing in things:
        if not write(to_line(thing)):
            return


def to_line(thing: Row) -> str:
    """Return one JSON line. ASCII only, so that it can move no cursor."""
    return json.dumps(thing, sort_keys=True, separators=(",", ":"), default=_plain) + "\n"


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print a table: drawn on a terminal, plain aligned text elsewhere."""
    heads = [name.replace("_", " ") for name in columns]
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    if sys.stdout is not None and sys.stdout.isatty():
        _draw(heads, cells)
    else:
        write(_aligned([heads, *cells]))


def cell(value: Any) -> str:
    """Return how a value is shown in a table, on one line."""
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return _plain(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value)) or _NONE
    if isinstance(value, Mapping):
        return escape_controls(json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain))
    return escape_controls(str(value)) or _NONE


def utc(wall_us: int | None) -> str | None:
    """Return a stored time as people and programs see it."""
    return None if wall_us is None else _plain(datetime.fromtimestamp(wall_us // SECOND_US, UTC))


def write(text: str) -> bool:
    """Write to standard output; return False where nobody reads it any more, which is no failure of the command."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False


def _show_one(thing: Row) -> None:
    width = max((len(name) for name in thing), default=0)
    lines = [f"{name.replace('_', ' '):<{width}}  {one_line(cell(value), _VALUE_MAX)}\n" for name, value in thing.items()]
    write("".join(lines))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _draw(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box  # only a terminal needs it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))  # Text: brackets in a value are no markup
    Console(highlight=False).print(table)


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
