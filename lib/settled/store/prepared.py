"""Statements built in Core, compiled once per dialect, and run by the driver itself, many rows at a time."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class Prepared:
    """One compiled statement. Values are given as a map of names; the driver gets what its parameter style wants."""

    __slots__ = ("_fixed", "_order", "_pickers", "text")

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text = str(compiled)
        # A dialect may add parameters of its own: SQLite's LIMIT always has an OFFSET.
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        positions: Sequence[str] | None = getattr(compiled, "positiontup", None)
        self._order = tuple(positions) if compiled.positional and positions is not None else None  # type: ignore[attr-defined]
        self._pickers: dict[tuple[str, ...], Callable[[tuple[Any, ...]], Any]] = {}

    def values(self, row: dict[str, Any]) -> Any:
        """Return one row in the driver's own form."""
        if self._fixed:
            row = self._fixed | row
        return row if self._order is None else tuple([row[name] for name in self._order])

    def run(self, cursor: Any, row: dict[str, Any]) -> Any:
        """Execute once; return the cursor."""
        return cursor.execute(self.text, self.values(row))

    def run_many(self, cursor: Any, rows: Sequence[dict[str, Any]]) -> int:
        """Execute for every row; return the summed row count."""
        if len(rows) == 1:
            cursor.execute(self.text, self.values(rows[0]))
        else:
            cursor.executemany(self.text, [self.values(row) for row in rows])
        return int(cursor.rowcount)


    def run_rows(self, cursor: Any, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> int:
        """Execute for every row of values in the order of `names`; return the summed row count. The way of hot paths."""
        pick = self._pickers.get(names)
        if pick is None:
            pick = self._pickers[names] = self._picker(names)
        if len(rows) == 1:
            cursor.execute(self.text, pick(rows[0]))
        else:
            cursor.executemany(self.text, map(pick, rows))
        return int(cursor.rowcount)

    def _picker(self, names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
        if self._fixed or self._order is None:
            return lambda row: self.values(dict(zip(names, row, strict=True)))
        if self._order == names:
            return tuple  # which gives a tuple back as it is
        return itemgetter(*(names.index(name) for name in self._order))


Build = Callable[[], ClauseElement] | Callable[[Dialect], ClauseElement]


class Statements:
    """Prepared statements of one dialect, each compiled at its first use."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._known: dict[Build, Prepared] = {}

    def __getitem__(self, build: Build) -> Prepared:
        """Return the prepared form of what `build` returns; `build` itself is the key."""
        found = self._known.get(build)
        if found is None:
            found = self._known[build] = Prepared(built(build, self.dialect), self.dialect)
        return found


def built(build: Build, dialect: Dialect) -> ClauseElement:
    """Call `build`, with the dialect where it asks for it: only an upsert needs to know."""
    if inspect.signature(build).parameters:
        return cast("Callable[[Dialect], ClauseElement]", build)(dialect)
    return cast("Callable[[], ClauseElement]", build)()


def upsert(table: sa.Table, dialect: Dialect) -> "sqlite.Insert | postgresql.Insert":
    """Return an insert that can say what to do on conflict, in the words of this dialect, and import only that one."""
    module = import_module(f"sqlalchemy.dialects.{dialect.name}")
    return cast("sqlite.Insert | postgresql.Insert", module.insert(table))


def named(name: str) -> sa.BindParameter[Any]:
    """Return a bind parameter of this name."""
    return sa.bindparam(name)
