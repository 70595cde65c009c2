"""Play one round of a certification: real worker processes on a ledger of their own, killed at a point, and what is there afterwards."""

import json
import secrets
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

from settled.app import App
from settled.core.errors import SettledError
from settled.core.moment import SECOND_US
from settled.core.words import NextAction
from settled.operation import Operation
from settled.store.audit import verify
from settled.testing.faults import Fault
from settled.testing.sandbox import Trouble
from settled_worker.testing import certified
from settled_worker.testing.judging import Seen, told_of
from settled_worker.testing.points import AT_DESTINATION, BY_THE_SECOND, BY_THE_SUBMITTER, IN_HANDLER, NONE, OUTAGES, Round
from settled_worker.testing.starting import RoundFailedError, Setting, started, wait
from settled_worker.testing.watched import WatchedApp

AT_REST_SECONDS: Final = 60.0
_REACH_SECONDS: Final = 45.0
_STRAGGLERS_SECONDS: Final = 1.5
_OUTAGE_SECONDS: Final = 3.0
_FIRST_KILL: Final = "after claim"
_SETTINGS: Final = """
[worker]
process_runners = {runners}
lease_seconds = 1.0
beat_seconds = 0.25
poll_seconds = 0.2
drain_seconds = 5.0
[sweeps.leases]
every_seconds = 0.15
[sweeps.reconcile]
every_seconds = 0.15
[sweeps.escalate]
every_seconds = 0.5
[logs]
format = "json"
"""


class _Ask:
    """One operation of a round: its trouble, its arguments, and its ID once it is submitted."""

    operation_id = ""

    def __init__(self, trouble: Trouble, arguments: dict[str, Any]) -> None:
        self.trouble, self.arguments = trouble, arguments


def play(setting: Setting, one: Round, folder: Path) -> list[Seen]:
    """Play a round in `folder`; return what became of each operation. Raises RoundFailedError."""
    folder.mkdir()
    (folder / certified.SETTINGS).write_text(_SETTINGS.format(runners=len(one.troubles)))
    app = WatchedApp(setting.theirs, folder / certified.DATABASE, terms=setting.terms)
    try:
        app.create_database()
        asks = [_arm(setting, one, trouble) for trouble in one.troubles]
        by_the_submitter = _submit(setting, app, one, folder, asks)
        hit = _live(setting, app, one, folder, asks)
        if one.point in BY_THE_SUBMITTER:
            hit = by_the_submitter
        wait(lambda: setting.sandbox.undecided() == 0, AT_REST_SECONDS)
        findings = verify(app.ledger)
        if findings:
            raise RoundFailedError(f"the ledger of a round does not verify: {findings[0]}")
        return [_seen(setting, app, one, ask, at_point=ask.operation_id in hit) for ask in asks]
    except SettledError as error:
        raise RoundFailedError(str(error)) from error
    finally:
        app.close()


def _arm(setting: Setting, one: Round, trouble: Trouble) -> _Ask:
    arguments = setting.sandbox.arguments(f"case-{secrets.token_hex(6)}")
    if one.point == "after commit" and trouble.call in (Fault.NONE, Fault.LOSE_ANSWER, Fault.ERROR_AFTER_COMMIT, Fault.MALFORMED_ANSWER):
        setting.sandbox.arm(arguments, trouble._replace(call=Fault.HANG))  # what its answer would be does not matter: it never comes
    else:
        setting.sandbox.arm(arguments, trouble, held=one.point == "mid-request")
    return _Ask(trouble, arguments)


def _submit(setting: Setting, app: App, one: Round, folder: Path, asks: list[_Ask]) -> set[str]:
    """Submit everything; a submitter that was killed is followed by one that knows nothing of it. Returns what was at its point."""
    was_killed = one.point in BY_THE_SUBMITTER and _submitter_is_killed(setting, one, folder, asks)
    hit = set()
    for ask in asks:
        submitted = app.submit(setting.contract, ask.arguments)
        ask.operation_id = submitted.operation_id
        if was_killed and submitted.created == (one.point == "before submit"):
            hit.add(ask.operation_id)
        if submitted.reason == "awaiting_approval":
            app.approve(submitted.operation_id, actor="certify", reason="a sandbox")
    return hit


def _submitter_is_killed(setting: Setting, one: Round, folder: Path, asks: list[_Ask]) -> bool:
    requests = [{"contract": setting.contract, "arguments": ask.arguments} for ask in asks]
    (folder / certified.REQUESTS).write_text(json.dumps(requests))
    with started(setting, folder, certified.SUBMIT, point=one.point, host=NONE) as submitter:
        wait(lambda: submitter.poll() is not None, _REACH_SECONDS)
        return submitter.poll() == -signal.SIGKILL


# ------------------------------------------------------------------ workers


def _live(setting: Setting, app: App, one: Round, folder: Path, asks: list[_Ask]) -> set[str]:
    """Start workers, one after the other, until every operation is at rest. Returns which operations were at the point."""
    first = _FIRST_KILL if one.point in BY_THE_SECOND else NONE if one.point in BY_THE_SUBMITTER else one.point
    with started(setting, folder, point=first, host=one.host) as worker:
        if first == NONE:
            _rest(app, asks, worker)
            return {ask.operation_id for ask in asks}
        hit = _meet_the_end(setting, one, folder, asks, app, worker)
    if one.point in BY_THE_SECOND:
        with started(setting, folder, point=one.point, host=one.host) as second:
            wait(lambda: second.poll() is not None or _at_rest(app, asks), _REACH_SECONDS)
            hit = _dispatched(app, asks) if second.poll() is not None else set()
    if one.host in OUTAGES:
        wait(lambda: False, _outage_seconds(setting, one))
    host = one.host if one.point not in BY_THE_SECOND else NONE
    with started(setting, folder, point=NONE, host=host) as last:
        _rest(app, asks, last)
    return hit


def _outage_seconds(setting: Setting, one: Round) -> float:
    """Return how long nothing runs: a while, or longer than the key is good for."""
    window_us: int = setting.terms[setting.contract]["window_us"]
    return _OUTAGE_SECONDS if one.host == "outage" else window_us / SECOND_US


def _meet_the_end(setting: Setting, one: Round, folder: Path, asks: list[_Ask], app: App, worker: subprocess.Popen[bytes]) -> set[str]:
    """Return when the worker is at its point, with the operations that are there. One that never comes there has no such point."""

    def reached() -> set[str]:
        if one.point in IN_HANDLER:
            return {mark.read_text() for mark in folder.glob("reached-*") if not mark.suffix}
        return {ask.operation_id for ask in asks if setting.sandbox.reached(ask.arguments, AT_DESTINATION[one.point])}

    if one.point not in IN_HANDLER and one.point not in AT_DESTINATION:
        wait(lambda: worker.poll() is not None or _at_rest(app, asks), _REACH_SECONDS)
        return _dispatched(app, asks) if worker.poll() is not None else set()
    wait(lambda: bool(reached()) or worker.poll() is not None or _at_rest(app, asks), _REACH_SECONDS)
    wait(lambda: len(reached()) >= len(asks) or worker.poll() is not None, _STRAGGLERS_SECONDS)
    return {ask.operation_id for ask in asks if ask.operation_id in reached() and not app.get(ask.operation_id).settled}


def _dispatched(app: App, asks: list[_Ask]) -> set[str]:
    """Return the operations that were under way when the worker ended; before its first claim, those that it was claiming."""
    return {ask.operation_id for ask in asks if not app.get(ask.operation_id).settled}


def _rest(app: App, asks: list[_Ask], worker: subprocess.Popen[bytes]) -> None:
    wait(lambda: _at_rest(app, asks) or worker.poll() is not None, AT_REST_SECONDS)
    if worker.poll() is not None and not _at_rest(app, asks):
        raise RoundFailedError(f"a worker ended with {worker.returncode} by itself")


def _at_rest(app: App, asks: list[_Ask]) -> bool:
    return all(_is_at_rest(app.get(ask.operation_id)) for ask in asks)


def _is_at_rest(operation: Operation) -> bool:
    waits_for_a_person = operation.next_action is NextAction.ASK_HUMAN or (operation.reason is not None and not operation.in_progress)
    return operation.settled or waits_for_a_person


def _seen(setting: Setting, app: App, one: Round, ask: _Ask, *, at_point: bool) -> Seen:
    now = app.get(ask.operation_id)
    events = app.events(ask.operation_id)
    return Seen(
        point=one.point,
        host=one.host,
        trouble=ask.trouble.name,
        told=told_of(ask.trouble),
        operation_id=ask.operation_id,
        status=now.status.value,
        outcome=None if now.outcome is None else now.outcome.value,
        reason=now.reason,
        attempts=now.attempts,
        effects=setting.sandbox.count(ask.arguments),
        events=tuple(event.type for event in events),
        bases=tuple(record["basis"] for record in now.attempt_records if record["basis"]),
        closed_by=tuple(record["closed_by"] for record in now.attempt_records),
        weaknesses=tuple(event.data["why"] for event in events if event.data.get("why")),
        at_point=at_point,
    )
