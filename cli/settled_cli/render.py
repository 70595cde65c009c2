"""Show answers: tables for people, JSON for programs, on standard output and nothing else there.

Promise: text that others wrote reaches no terminal raw, and a reader that goes away never changes how a command ends.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from settled.core.moment import at
from settled.core.text import escape_controls, one_line
from settled_cli.invocation import Invocation

Row = Mapping[str, Any]
_NONE: Final = "-"
_WHOLE_MAX: Final = 20  # characters, of a cell that never wraps: a status, a time
_WRAPPED_MIN: Final = 20  # characters, of a column whose texts wrap
_GAP: Final = 2
_INDENT: Final = "    "
_VALUE_MAX: Final = 2000  # of one value in a table that shows a single thing; programs get the whole


def emit(invocation: Invocation, answer: Row | Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Print one thing or a list of things. `columns` are the columns of a table of things, in order."""
    if invocation.output == "json":
        write(to_text(answer))
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


def to_text(thing: Row | Sequence[Row]) -> str:
    """Return JSON that people may read, too. ASCII only, so that it can move no cursor."""
    return json.dumps(thing, sort_keys=True, indent=2, default=_plain) + "\n"


def to_line(thing: Row) -> str:
    """Return one JSON line. ASCII only, so that it can move no cursor."""
    return json.dumps(thing, sort_keys=True, separators=(",", ":"), default=_plain) + "\n"


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print a table: drawn on a terminal, plain aligned text elsewhere."""
    heads = [name.replace("_", " ") for name in columns]
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    if sys.stdout is None or not sys.stdout.isatty():
        write(_aligned([heads, *cells]))
    elif not _draw(heads, cells):
        write(_flowing([heads, *cells], shutil.get_terminal_size().columns))


def cell(value: Any) -> str:
    """Return how a value is shown in a table, on one line."""
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value)) or _NONE
    if isinstance(value, Mapping):
        return escape_controls(json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain))
    return escape_controls(str(value)) or _NONE


def utc(wall_us: int | None) -> str | None:
    """Return a stored time as people and programs see it."""
    return None if wall_us is None else _utc(at(wall_us))


def write(text: str) -> bool:
    """Write to standard output; return False where nobody reads it any more, which is no failure of the command."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    except BrokenPipeError:
        _write_nowhere()
        return False
    except OSError as error:
        _write_nowhere()
        raise click.ClickException(
            f"the answer could not be written ({error.strerror}). What the command did is done. Look: settled op list"
        ) from error


def _write_nowhere() -> None:
    """Let nothing more be written where writing failed, not even at the interpreter's end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _show_one(thing: Row) -> None:
    width = max((len(name) for name in thing), default=0)
    lines = [f"{name.replace('_', ' '):<{width}}  {one_line(cell(value), _VALUE_MAX)}\n" for name, value in thing.items()]
    write("".join(lines))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _flowing(rows: Sequence[Sequence[str]], columns: int) -> str:
    """Return a table for a narrow terminal: what does not fit beside its first columns stands indented below them, whole."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines: list[list[int]] = [[]]
    left = columns
    for index, width in enumerate(widths):
        if lines[-1] and width > left:
            lines.append([])
            left = columns - len(_INDENT)
        lines[-1].append(index)
        left -= width + _GAP
    texts = []
    for row in rows:
        parts = ("  ".join(row[index].ljust(widths[index]) for index in line).rstrip() for line in lines)
        texts.append(_INDENT.join(f"{part}\n" for part in parts))
    return "".join(texts)


def _draw(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Draw a table whose long texts wrap between words; return False where the terminal is too narrow, for no value is ever cut."""
    from rich.console import Console  # only a terminal needs it
    from rich.table import Table
    from rich.text import Text

    console, table = Console(highlight=False), Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    needed = 0
    for index, head in enumerate(heads):
        width = max((len(row[index]) for row in rows), default=0)
        shown = head.replace(" ", "\n") if width < len(head) else head
        width = max(width, *map(len, shown.splitlines()))
        word = max((len(one) for row in rows for one in row[index].split()), default=0)  # an ID is copied: it never breaks
        least = max(word, min(width, _WRAPPED_MIN)) if width > _WHOLE_MAX else width
        needed += least + _GAP
        table.add_column(shown, overflow="fold", no_wrap=width <= _WHOLE_MAX, min_width=least)
    if needed > console.width:
        return False
    for row in rows:
        table.add_row(*(Text(text) for text in row))  # Text: brackets in a value are no markup
    console.print(table)
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return dict(value) if isinstance(value, Mapping) else str(value)


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
