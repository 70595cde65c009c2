"""Remember what each sweep did, a bounded number of runs per name."""

from typing import Final, NamedTuple

import sqlalchemy as sa

from settled.core.limits import DEFAULTS
from settled.store.prepared import named
from settled.store.schema import sweep_run
from settled.store.transaction import Transaction


class SweepRun(NamedTuple):
    """One run: when, how many rows it looked at, moved, and could not handle."""

    id: int
    name: str
    started_us: int
    ended_us: int
    examined: int
    moved: int
    errors: int
    note: str | None


_COLUMNS: Final = tuple(sweep_run.c[name] for name in SweepRun._fields)
_ONE: Final[sa.ColumnElement[int]] = sa.literal_column("1")


def record_run(
    transaction: Transaction,
    name: str,
    started_us: int,
    ended_us: int,
    examined: int,
    moved: int,
    errors: int,
    note: str | None = None,
    *,
    keep_max: int = DEFAULTS.sweep_history_max,
) -> None:
    """Store one run and forget the oldest of this name beyond `keep_max`."""
    run = SweepRun(0, name, started_us, ended_us, examined, moved, errors, note)._asdict()
    del run["id"]
    transaction.run(_insert, **run)
    transaction.run(_forget, name=name, keep_max=keep_max)


def last_runs(transaction: Transaction) -> dict[str, SweepRun]:
    """Return the latest run of every sweep that ever ran, found by one seek each."""
    found: dict[str, SweepRun] = {}
    name = transaction.run(_first_name).fetchone()
    while name is not None:
        found[name[0]] = SweepRun._make(transaction.run(_latest_of, name=name[0], limit=1).fetchone())
        name = transaction.run(_next_name, name=name[0]).fetchone()
    return found


def history(transaction: Transaction, name: str | None, limit: int) -> list[SweepRun]:
    """Return the latest runs of one sweep, or of all, newest first."""
    if name is None:
        return [SweepRun._make(row) for row in transaction.run(_latest, limit=limit).fetchall()]
    return [SweepRun._make(row) for row in transaction.run(_latest_of, name=name, limit=limit).fetchall()]


def _insert() -> sa.ClauseElement:
    return sa.insert(sweep_run).values({name: named(name) for name in SweepRun._fields if name != "id"})


def _forget() -> sa.ClauseElement:
    newer = sa.select(sweep_run.c.id).where(sweep_run.c.name == named("name")).order_by(sweep_run.c.id.desc())
    oldest_kept = newer.limit(_ONE).offset(named("keep_max")).scalar_subquery()
    return sa.delete(sweep_run).where(sweep_run.c.name == named("name"), sweep_run.c.id <= oldest_kept)


def _latest() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).order_by(sweep_run.c.id.desc()).limit(named("limit"))


def _latest_of() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(sweep_run.c.name == named("name")).order_by(sweep_run.c.id.desc()).limit(named("limit"))


def _first_name() -> sa.ClauseElement:
    return sa.select(sweep_run.c.name).order_by(sweep_run.c.name).limit(_ONE)


def _next_name() -> sa.ClauseElement:
    return sa.select(sweep_run.c.name).where(sweep_run.c.name > named("name")).order_by(sweep_run.c.name).limit(_ONE)
