"""Where the runtime keeps its runs: each move is one transaction, guarded by the version that was seen, with its events.

Promise: what a run holds of a task, arguments, results and output passes the App's codec; its events hold none of it.
"""

import builtins
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from settled.core.canonical import canonical_text, fingerprint
from settled.core.limits import DEFAULTS
from settled.core.terms import seconds_us
from settled.identity import check_identity
from settled.integrations.answers import CONFIRMATION_REQUIRED
from settled.integrations.policy import Pending
from settled.integrations.run import Run, RunConflictError, RunNotFoundError, RunState, Step
from settled.integrations.trace import write_trace
from settled.store.agent_runs import (
    RunEvent,
    RunRow,
    StepRow,
    append_events,
    change_run,
    change_step,
    find_finished_runs,
    find_run,
    forget_runs,
    insert_run,
    insert_steps,
    list_runs,
    read_run_events,
    read_steps,
)

if TYPE_CHECKING:
    from settled.app import App


def bounded_text(value: Any, what: str) -> str:
    """Return the canonical text of plain data. Raises TypeError or ValueError for what is no strict JSON, or too long."""
    text = canonical_text(value, what)
    if len(text.encode()) > DEFAULTS.arguments_bytes_max:
        raise ValueError(f"the {what} is longer than {DEFAULTS.arguments_bytes_max} bytes. Nothing was stored. Pass a reference instead.")
    return text


class Stored(NamedTuple):
    """A run and its steps as they were read in one transaction."""

    row: RunRow
    steps: tuple[StepRow, ...]

    @property
    def turn(self) -> tuple[StepRow, ...]:
        """The steps of the turn that the run is in."""
        return tuple(step for step in self.steps if step.turn == self.row.turn)


class Runbook:
    """The runs of one App."""

    def __init__(self, app: "App", *, trace: Path | None = None) -> None:
        self._app, self._trace = app, trace

    def open(self, run_id: str, task: Any) -> None:
        """Store a new run, or find the one of this ID. Raises RunConflictError where that has another task."""
        text, now_us = bounded_text(task, "task"), self.now_us()
        row = RunRow(
            run_id=check_identity(run_id, "run_id"),
            task=self.encode(text),
            task_fingerprint=fingerprint(text),
            state=RunState.RUNNING,
            reason=None,
            turn=0,
            version=1,
            output=None,
            created_us=now_us,
            updated_us=now_us,
        )
        events: list[RunEvent] = []
        with self._app.ledger.write() as transaction:
            if insert_run(transaction, row):
                events = append_events(transaction, [RunEvent(run_id, 0, "started", at_us=now_us)])
            else:
                found = find_run(transaction, run_id)
                if found is None or found.task_fingerprint != row.task_fingerprint:
                    raise RunConflictError(run_id, "task")
        self._tell(events)

    def read(self, run_id: str) -> Stored:
        """Return a run. Raises RunNotFoundError."""
        with self._app.ledger.read() as transaction:
            row = find_run(transaction, run_id)
            if row is None:
                raise RunNotFoundError(run_id)
            return Stored(row, tuple(read_steps(transaction, run_id)))

    def record(
        self,
        seen: RunRow,
        events: Sequence[RunEvent],
        *,
        planned: Sequence[StepRow] = (),
        changed: Sequence[StepRow] = (),
        **values: Any,
    ) -> RunRow:
        """Move a run with its steps and events and return it, or raise RunConflictError with nothing recorded."""
        now_us = self.now_us()
        with self._app.ledger.write() as transaction:
            after = change_run(transaction, seen, updated_us=now_us, **values)
            if after is None:
                raise RunConflictError(seen.run_id, "version")
            if planned:
                insert_steps(transaction, planned)
            for step in changed:
                change_step(transaction, step._replace(updated_us=now_us))
            events = append_events(transaction, [event._replace(at_us=now_us) for event in events])
        self._tell(events)
        return after

    def view(self, stored: Stored) -> Run:
        """Return what a host sees of a stored run."""
        row = stored.row
        steps = tuple(self._step(step) for step in stored.steps)
        asked = [step for step in stored.turn if step.status == CONFIRMATION_REQUIRED]
        return Run(
            run_id=row.run_id,
            state=RunState(row.state),
            reason=row.reason,
            turn=row.turn,
            version=row.version,
            task=self.decode(row.task),
            output=self.decode(row.output),
            steps=steps,
            pending=tuple(
                Pending(
                    run_id=row.run_id,
                    tool=step.tool,
                    arguments=self.decode(step.arguments),
                    fingerprint=step.fingerprint,
                    operation_id=step.operation_id,
                )
                for step in asked
            ),
        )

    def list(self, state: str, limit: int) -> "builtins.list[str]":
        """Return IDs of runs in a state."""
        with self._app.ledger.read() as transaction:
            return list_runs(transaction, RunState(state), limit)

    def events(self, run_id: str) -> "builtins.list[RunEvent]":
        """Return the events of a run in order."""
        with self._app.ledger.read() as transaction:
            return read_run_events(transaction, run_id)

    def forget(self, older_than: timedelta) -> int:
        """Remove finished runs, a bounded number of them; return how many."""
        before_us = self.now_us() - seconds_us(older_than.total_seconds())
        with self._app.ledger.write() as transaction:
            found = find_finished_runs(transaction, before_us, DEFAULTS.list_max)
            forget_runs(transaction, found)
        return len(found)

    def now_us(self) -> int:
        """Return the wall clock's time."""
        return self._app.shell.clock.now().wall_us

    def encode(self, text: str) -> str:
        """Return what is stored for a text."""
        return self._app.shell.codec.encode(text)

    def decode(self, stored: str | None) -> Any:
        """Return the plain data of a stored text; None where there is none, or where it has been purged."""
        text = self._app.shell.codec.decode(stored) if stored else ""
        return json.loads(text) if text else None  # what was purged may have been encrypted anew since then

    def _step(self, step: StepRow) -> Step:
        result = self.decode(step.result) or {}
        return Step(
            number=step.number,
            turn=step.turn,
            tool=step.tool,
            effect_status=step.status,
            operation_id=step.operation_id,
            done=bool(step.done),
            in_progress=bool(result.get("in_progress")),
            arguments=self.decode(step.arguments),
            result=result.get("told"),
        )

    def _tell(self, events: Sequence[RunEvent]) -> None:
        if self._trace is not None and events:
            write_trace(self._trace, events)
