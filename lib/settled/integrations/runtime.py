"""A small durable runtime: plan, policy, tool, observation, with a checkpoint at each step, in the ledger's own database.

It serves agents without a framework, and says by running how an adapter must behave. Promise: what was planned is stored before
it is tried and is not planned a second time; an effect that is not settled moves the run to waiting; resuming makes the same
calls again, which find their operations and do nothing twice.
"""

import builtins
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from settled.clock import monotonic_us
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.core.text import one_line
from settled.core.words import FAILED_STATUSES, Status
from settled.integrations.answers import (
    CONFIRMATION_REQUIRED,
    CONFLICT,
    DENIED,
    INVALID_ARGUMENTS,
    ToolResult,
    tell_confirmation_required,
    tell_denied,
)
from settled.integrations.gate import RUN_KEY, Gate, Judged, log_verdict
from settled.integrations.plain import PlainTool
from settled.integrations.policy import Confirmation, Policy, Verdict, arguments_fingerprint
from settled.integrations.run import FINISHED, Call, Finish, Run, RunState
from settled.integrations.runbook import Runbook, Stored, bounded_text
from settled.integrations.tools import Tool
from settled.store.agent_runs import RunEvent, RunRow, StepRow
from settled.waiting import wait_us

if TYPE_CHECKING:
    from settled.app import App

Planner = Callable[[Run], Call | Sequence[Call] | Finish]
_FAILS: Final = frozenset({*FAILED_STATUSES, CONFLICT, DENIED})
# A run that fails waits for what it has asked for, so that its host learns how that ended; it asks for nothing more.
_ASKED_FOR: Final = frozenset(Status)
_NOT_ASKED_FOR: Final = frozenset({None, CONFIRMATION_REQUIRED})


class Runtime:
    """Runs of one planner over one set of tools. `wait`: how long the calls of a turn are waited for, in seconds, and nothing else."""

    def __init__(
        self,
        app: "App",
        *,
        plan: Planner,
        tools: Iterable[Tool | PlainTool],
        policy: Policy | None = None,
        wait: float = DEFAULTS.tool_wait_seconds,
        trace: Path | str | None = None,
    ) -> None:
        self.app, self.plan, self.policy, self.wait = app, plan, policy or Policy(), wait
        self.tools: dict[str, Tool | PlainTool] = {}
        for tool in tools:
            if tool.name in self.tools:
                raise ConfigurationError(f"two tools are named {tool.name!r}. Give one of them name=")
            self.tools[tool.name] = tool
        self._book = Runbook(app, trace=None if trace is None else Path(trace))

    def start(self, run_id: str, task: Any = None, *, confirmations: Iterable[Confirmation] = ()) -> Run:
        """Store a run and drive it until it ends or waits; a run of this ID goes on where it stood.

        Raises RunConflictError where the ID belongs to another task, and what the planner raises; the run is left as it was stored.
        """
        self._book.open(run_id, task)
        return self._drive(run_id, tuple(confirmations))

    def resume(self, run: Run | str, *, confirmations: Iterable[Confirmation] = ()) -> Run:
        """Go on with a run. Of a snapshot only its ID is used: everything else is read from the store.

        Raises RunNotFoundError, RunConflictError where another process moves it meanwhile. A finished run is returned as it is.
        """
        return self._drive(run.run_id if isinstance(run, Run) else run, tuple(confirmations))

    def get(self, run_id: str) -> Run:
        """Return a run as it stands. Raises RunNotFoundError."""
        return self._book.view(self._book.read(run_id))

    def list(self, state: str = RunState.WAITING, *, limit: int = DEFAULTS.list_default) -> "builtins.list[str]":
        """Return IDs of runs in a state, the longest untouched first: after a restart, those to resume."""
        return self._book.list(state, limit)

    def events(self, run_id: str) -> "builtins.list[RunEvent]":
        """Return what happened to a run, in order: its audit."""
        return self._book.events(run_id)

    def forget(self, *, older_than: timedelta) -> int:
        """Remove finished runs that nothing has touched for so long, with their audit; return how many. Operations stay."""
        return self._book.forget(older_than)

    # ------------------------------------------------------------------ the loop

    def _drive(self, run_id: str, confirmations: tuple[Confirmation, ...]) -> Run:
        if self.app.ledger.misplaced:
            raise ConfigurationError(
                f"the ledger {self.app.ledger.path} is a copy that does not know what was asked for after it was made. Run {run_id!r} was "
                f"left as it is. Look at what it did, then run: settled db adopt --reason …"
            )
        tried = False
        while True:
            stored = self._book.read(run_id)
            if stored.row.state in FINISHED:
                return self._book.view(stored)
            failed = next((step for step in stored.turn if step.status in _FAILS), None)
            unfinished = [step for step in stored.turn if not step.done and (failed is None or step.status not in _NOT_ASKED_FOR)]
            if unfinished and tried:
                return self._wait(stored)
            if unfinished:
                self._try(stored, unfinished, confirmations)
                tried = True
            elif failed is not None:
                self._end(stored.row, RunState.FAILED, f"{failed.status}: {failed.tool}")
            else:
                self._plan(stored)
                tried = False

    def _plan(self, stored: Stored) -> None:
        """Ask the planner and store what it says before any of it is done."""
        row = stored.row
        said = self.plan(self._book.view(stored))
        if isinstance(said, Finish):
            self._end(row, RunState.COMPLETED, None, output=self._book.encode(bounded_text(said.output, "output")))
            return
        calls = [said] if isinstance(said, Call) else list(said) if isinstance(said, (list, tuple)) else []
        if not calls or not all(isinstance(call, Call) for call in calls):
            raise TypeError(f"the planner of run {row.run_id!r} must return a Call, Calls or a Finish, not {said!r}. Nothing was done.")
        if len(calls) > DEFAULTS.agent_turn_calls_max or len(stored.steps) + len(calls) > DEFAULTS.agent_steps_max:
            self._end(row, RunState.FAILED, "too_many_calls")
            return
        first = len(stored.steps) + 1
        planned = [self._planned(row, number, call) for number, call in enumerate(calls, first)]
        self._book.record(row, [_event("planned", step) for step in planned], planned=planned, turn=row.turn + 1, state=RunState.RUNNING)

    def _planned(self, row: RunRow, number: int, call: Call) -> StepRow:
        status = result = None
        try:
            text = bounded_text(call.arguments, "arguments")
        except (TypeError, ValueError) as error:  # it cannot even be stored; the planner is told
            told = {"status": INVALID_ARGUMENTS, "error": one_line(str(error), DEFAULTS.error_text_max)}
            text, status, result = "null", INVALID_ARGUMENTS, self._book.encode(json.dumps({"told": told}))
        return StepRow(
            run_id=row.run_id,
            number=number,
            turn=row.turn + 1,
            tool=one_line(str(call.tool), DEFAULTS.tool_name_max),
            call_id=None if call.call_id is None else one_line(str(call.call_id), DEFAULTS.operation_id_max),
            arguments=self._book.encode(text),
            fingerprint=arguments_fingerprint(call.arguments),
            operation_id=None,
            status=status,
            done=int(status is not None),
            result=result,
            updated_us=row.updated_us,
        )

    def _try(self, stored: Stored, steps: Sequence[StepRow], confirmations: tuple[Confirmation, ...]) -> None:
        """Ask the policy about every call of the turn, then do those that it allows. One denial, and none of them is done."""
        gate = Gate(self.app, run_id=stored.row.run_id, policy=self.policy)
        judged = [(step, self._judge(gate, step, confirmations)) for step in steps]
        denied = [one for one in judged if one[1].verdict is Verdict.DENIED]
        if denied:
            self._hold(stored.row, denied, done=1)
            return
        row = self._hold(stored.row, [one for one in judged if one[1].verdict is Verdict.CONFIRMATION_REQUIRED], done=0)
        allowed = [(step, one) for step, one in judged if one.verdict is Verdict.ALLOWED]
        row = self._note_confirmed(row, allowed)
        effects = [(tool, step) for step, _ in allowed if isinstance(tool := self.tools[step.tool], Tool)]
        if len(effects) > 1:  # all of them begin before one of them is waited for
            for tool, step in effects:
                self._call(tool, step, 0.0)
        until_us = monotonic_us() + wait_us(self.wait, "wait")
        for step, _ in allowed:
            row = self._do(row, step, max(0.0, (until_us - monotonic_us()) / 1_000_000))

    def _judge(self, gate: Gate, step: StepRow, confirmations: tuple[Confirmation, ...]) -> Judged:
        tool = self.tools.get(step.tool)
        if step.status in _ASKED_FOR and tool is None:
            raise ConfigurationError(
                f"run {step.run_id!r} waits for operation {step.operation_id!r} of the tool {step.tool!r}, which is not declared any more. "
                f"Nothing was changed. Declare it until the run has ended"
            )
        named = {"call_id": step.call_id, "scope": step.run_id} if isinstance(tool, Tool) else {}
        return gate.judge(step.tool, tool, self._book.decode(step.arguments), confirmations, **named)

    def _hold(self, row: RunRow, judged: Sequence[tuple[StepRow, Judged]], *, done: int) -> RunRow:
        """Record what the policy holds back, where it is news."""
        news = [(step, one) for step, one in judged if step.status != one.verdict]
        if not news:
            return row
        changed, events = list[StepRow](), list[RunEvent]()
        for step, one in news:
            told = tell_denied(step.tool) if done else tell_confirmation_required(step.tool, one.pending.operation_id)
            text = self._book.encode(json.dumps({"told": told.for_model()}))
            status = DENIED if done else CONFIRMATION_REQUIRED
            changed.append(step._replace(status=status, operation_id=one.pending.operation_id, done=done, result=text))
            events.extend([] if (event := one.event()) is None else [event._replace(step=step.number)])
        row = self._book.record(row, events, changed=changed)
        for event in events:
            log_verdict(event)
        return row

    def _note_confirmed(self, row: RunRow, allowed: Sequence[tuple[StepRow, Judged]]) -> RunRow:
        """Record who confirmed what, before any of it is submitted."""
        events = [event._replace(step=step.number) for step, one in allowed if (event := one.event()) is not None]
        if not events:
            return row
        row = self._book.record(row, events)
        for event in events:
            log_verdict(event)
        return row

    def _call(self, tool: Tool, step: StepRow, wait: float) -> ToolResult:
        arguments = self._book.decode(step.arguments)
        return tool.call(arguments, wait=wait, call_id=step.call_id, scope=step.run_id, metadata={RUN_KEY: step.run_id})

    def _do(self, row: RunRow, step: StepRow, wait: float) -> RunRow:
        """Make one call and record how it stands. A crash in here makes the same call again."""
        tool = self.tools[step.tool]
        if isinstance(tool, Tool):
            result = self._call(tool, step, wait)
            status, told, done = str(result.effect_status), result.for_model(), not result.waiting
            operation_id, in_progress = result.operation_id, result.in_progress
        else:
            plain = tool.call(self._book.decode(step.arguments))
            status, told, done, operation_id, in_progress = plain.status, plain.for_model(), True, None, False
        if (status, int(done)) == (step.status, step.done):
            return row
        text = self._book.encode(json.dumps({"told": told, "in_progress": in_progress}))
        after = step._replace(status=status, operation_id=operation_id, done=int(done), result=text)
        return self._book.record(row, [_event("observed", after)], changed=[after])

    def _wait(self, stored: Stored) -> Run:
        if stored.row.state != RunState.WAITING:
            self._book.record(stored.row, [RunEvent(stored.row.run_id, 0, "waiting")], state=RunState.WAITING)
        return self.get(stored.row.run_id)

    def _end(self, row: RunRow, state: RunState, reason: str | None, **values: Any) -> None:
        self._book.record(row, [RunEvent(row.run_id, 0, str(state), status=reason)], state=state, reason=reason, **values)


def _event(type_: str, step: StepRow) -> RunEvent:
    return RunEvent(
        step.run_id, 0, type_, step=step.number, tool=step.tool, fingerprint=step.fingerprint, operation_id=step.operation_id,
        status=step.status,
    )  # fmt: skip
