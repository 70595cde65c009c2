"""The runs of the reference runtime: where each stands, its steps, and what was decided.

Promise: a run moves by one UPDATE guarded by the version that was seen, so that of two processes that drive one run one
records and the other is told.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.store.prepared import named, upsert
from settled.store.schema import agent_event, agent_run, agent_step
from settled.store.transaction import Transaction


class RunRow(NamedTuple):
    """One run. `task` and `output` are as the codec wrote them."""

    run_id: str
    task: str
    task_fingerprint: str
    state: str
    reason: str | None
    turn: int
    version: int
    output: str | None
    created_us: int
    updated_us: int


class StepRow(NamedTuple):
    """One call that was planned. `arguments` and `result` are as the codec wrote them; `done` says that nothing more comes."""

    run_id: str
    number: int
    turn: int
    tool: str
    call_id: str | None
    arguments: str
    fingerprint: str
    operation_id: str | None
    status: str | None
    done: int
    result: str | None
    updated_us: int


class RunEvent(NamedTuple):
    """One thing that happened to a run. It holds no arguments, no results, no text of a model."""

    run_id: str
    sequence: int
    type: str
    step: int | None = None
    tool: str | None = None
    fingerprint: str | None = None
    operation_id: str | None = None
    status: str | None = None
    actor: str | None = None
    at_us: int = 0


_CHANGED: Final = ("state", "reason", "turn", "output", "updated_us")
_SETTLED_STEP: Final = ("operation_id", "status", "done", "result", "updated_us")


def insert_run(transaction: Transaction, run: RunRow) -> bool:
    """Store a new run; return False where its ID is taken, with nothing changed."""
    return bool(transaction.run(_insert_run, **run._asdict()).rowcount)


def find_run(transaction: Transaction, run_id: str) -> RunRow | None:
    """Return a run."""
    found = transaction.run(_run, run_id=run_id).fetchone()
    return None if found is None else RunRow._make(found)


def list_runs(transaction: Transaction, state: str, limit: int) -> list[str]:
    """Return IDs of the runs in one state, the longest untouched first."""
    return [row[0] for row in transaction.run(_in_state, state=state, limit=limit).fetchall()]


def change_run(transaction: Transaction, seen: RunRow, **changed: Any) -> RunRow | None:
    """Write a run's new values over the version that was seen; None, with nothing written, where somebody else was faster."""
    after = seen._replace(**changed, version=seen.version + 1)
    values = {name: getattr(after, name) for name in _CHANGED}
    moved = transaction.run(_change_run, known=seen.run_id, seen_version=seen.version, new_version=after.version, **values).rowcount
    return after if moved else None


def insert_steps(transaction: Transaction, steps: Sequence[StepRow]) -> None:
    """Store planned calls."""
    transaction.statements[_insert_step].run_many(transaction.cursor, [step._asdict() for step in steps])


def change_step(transaction: Transaction, step: StepRow) -> None:
    """Write how a call stands. The caller has moved its run in this transaction."""
    values = {name: getattr(step, name) for name in _SETTLED_STEP}
    transaction.run(_change_step, known=step.run_id, known_number=step.number, **values)


def read_steps(transaction: Transaction, run_id: str) -> list[StepRow]:
    """Return the calls of a run in order."""
    return [StepRow._make(row) for row in transaction.run(_steps, run_id=run_id).fetchall()]


def append_events(transaction: Transaction, events: Iterable[RunEvent]) -> list[RunEvent]:
    """Append events, each with the next number of its run; return them numbered."""
    numbered, last = list[RunEvent](), dict[str, int]()
    for event in events:
        if event.run_id not in last:
            last[event.run_id] = int(transaction.run(_last, run_id=event.run_id).fetchone()[0] or 0)
        last[event.run_id] += 1
        numbered.append(event._replace(sequence=last[event.run_id]))
    if numbered:
        transaction.statements[_insert_event].run_many(transaction.cursor, [event._asdict() for event in numbered])
    return numbered


def read_run_events(transaction: Transaction, run_id: str) -> list[RunEvent]:
    """Return the events of a run in order."""
    return [RunEvent._make(row) for row in transaction.run(_events, run_id=run_id).fetchall()]


def forget_runs(transaction: Transaction, run_ids: Sequence[str]) -> None:
    """Remove whole runs, with their steps and events."""
    for build in (_forget_events, _forget_steps, _forget_run):
        if run_ids:
            transaction.statements[build].run_many(transaction.cursor, [{"run_id": one} for one in run_ids])


def find_finished_runs(transaction: Transaction, before_us: int, limit: int) -> list[str]:
    """Return IDs of completed and failed runs that nothing has touched since `before_us`."""
    return [row[0] for row in transaction.run(_finished, before_us=before_us, limit=limit).fetchall()]


def fail_unfinished_runs(transaction: Transaction, reason: str, at_us: int, limit: int) -> int:
    """Fail every run that has not ended, with an event each; return how many."""
    failed = 0
    for state in ("running", "waiting"):
        while found := list_runs(transaction, state, limit):
            for row in [run for run_id in found if (run := find_run(transaction, run_id)) is not None]:
                change_run(transaction, row, state="failed", reason=reason, updated_us=at_us)
                append_events(transaction, [RunEvent(row.run_id, 0, "failed", status=reason, at_us=at_us)])
            failed += len(found)
    return failed


def clear_run_texts(transaction: Transaction, before_us: int, limit: int) -> int:
    """Empty the texts of finished runs that nothing has touched since `before_us`; return of how many. The caller overwrites."""
    found = [row[0] for row in transaction.run(_finished_with_texts, before_us=before_us, limit=limit).fetchall()]
    for build in (_clear_run, _clear_steps):
        if found:
            transaction.statements[build].run_many(transaction.cursor, [{"known": one} for one in found])
    return len(found)


def _insert_run(dialect: Dialect) -> sa.ClauseElement:
    return upsert(agent_run, dialect).values({name: named(name) for name in RunRow._fields}).on_conflict_do_nothing()


def _run() -> sa.ClauseElement:
    return sa.select(*(agent_run.c[name] for name in RunRow._fields)).where(agent_run.c.run_id == named("run_id"))


def _in_state() -> sa.ClauseElement:
    found = sa.select(agent_run.c.run_id).where(agent_run.c.state == named("state"))
    return found.order_by(agent_run.c.updated_us).limit(named("limit"))


def _ended(*more: sa.ColumnElement[bool]) -> sa.ClauseElement:
    ended = agent_run.c.state.in_([sa.literal_column("'completed'"), sa.literal_column("'failed'")])
    return sa.select(agent_run.c.run_id).where(ended, agent_run.c.updated_us < named("before_us"), *more).limit(named("limit"))


def _finished() -> sa.ClauseElement:
    return _ended()


def _finished_with_texts() -> sa.ClauseElement:
    return _ended(agent_run.c.task != sa.literal_column("''"))


def _clear_run() -> sa.ClauseElement:
    return sa.update(agent_run).where(agent_run.c.run_id == named("known")).values(task=sa.literal_column("''"), output=sa.null())


def _clear_steps() -> sa.ClauseElement:
    return sa.update(agent_step).where(agent_step.c.run_id == named("known")).values(arguments=sa.literal_column("''"), result=sa.null())


def _change_run() -> sa.ClauseElement:
    seen = sa.and_(agent_run.c.run_id == named("known"), agent_run.c.version == named("seen_version"))
    return sa.update(agent_run).where(seen).values({name: named(name) for name in _CHANGED} | {"version": named("new_version")})


def _insert_step() -> sa.ClauseElement:
    return sa.insert(agent_step).values({name: named(name) for name in StepRow._fields})


def _change_step() -> sa.ClauseElement:
    this = sa.and_(agent_step.c.run_id == named("known"), agent_step.c.number == named("known_number"))
    return sa.update(agent_step).where(this).values({name: named(name) for name in _SETTLED_STEP})


def _steps() -> sa.ClauseElement:
    rows = sa.select(*(agent_step.c[name] for name in StepRow._fields)).where(agent_step.c.run_id == named("run_id"))
    return rows.order_by(agent_step.c.number)


def _last() -> sa.ClauseElement:
    return sa.select(sa.func.max(agent_event.c.sequence)).where(agent_event.c.run_id == named("run_id"))


def _insert_event() -> sa.ClauseElement:
    return sa.insert(agent_event).values({name: named(name) for name in RunEvent._fields})


def _events() -> sa.ClauseElement:
    rows = sa.select(*(agent_event.c[name] for name in RunEvent._fields)).where(agent_event.c.run_id == named("run_id"))
    return rows.order_by(agent_event.c.sequence)


def _forget_run() -> sa.ClauseElement:
    return sa.delete(agent_run).where(agent_run.c.run_id == named("run_id"))


def _forget_steps() -> sa.ClauseElement:
    return sa.delete(agent_step).where(agent_step.c.run_id == named("run_id"))


def _forget_events() -> sa.ClauseElement:
    return sa.delete(agent_event).where(agent_event.c.run_id == named("run_id"))
