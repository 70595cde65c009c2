"""Play one round of a certification: real worker processes on a ledger of their own, killed at a point, and what is there afterwards."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from settled.app import App
from settled.clock import monotonic_us
from settled.core.errors import SettledError
from settled.core.words import NextAction
from settled.operation import Operation
from settled.store.audit import verify
from settled.testing.faults import Fault
from settled.testing.sandbox import Sandbox, Trouble
from settled_worker.testing import certified
from settled_worker.testing.judging import Seen, told_of
from settled_worker.testing.points import AT_DESTINATION, BY_THE_SECOND, IN_HANDLER, NONE, Round
from settled_worker.testing.watched import WatchedApp

AT_REST_SECONDS: Final = 60.0
_REACH_SECONDS: Final = 45.0
_STRAGGLERS_SECONDS: Final = 1.5
_LOOK_SECONDS: Final = 0.03
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


class RoundFailedError(Exception):
    """A round could not be played. Its message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all rounds of a certification share. `terms` are the scaled terms, `environment` is the sandbox's."""

    theirs: App
    app_reference: str
    contract: str
    terms: Mapping[str, Mapping[str, Any]]
    sandbox: Sandbox
    environment: Mapping[str, str]
    here: Path


class _Ask:
    """One operation of a round: its trouble and its arguments."""

    def __init__(self, trouble: Trouble, arguments: dict[str, Any], operation_id: str) -> None:
        self.trouble, self.arguments, self.operation_id = trouble, arguments, operation_id


def play(setting: Setting, one: Round, folder: Path) -> list[Seen]:
    """Play a round in `folder`; return what became of each operation. Raises RoundFailedError."""
    folder.mkdir()
    (folder / certified.SETTINGS).write_text(_SETTINGS.format(runners=len(one.troubles)))
    app = WatchedApp(setting.theirs, folder / certified.DATABASE, terms=setting.terms)
    try:
        app.create_database()
        asks = [_ask(setting, app, one, trouble) for trouble in one.troubles]
        hit = _live(setting, app, one, folder, asks)
        _wait(lambda: setting.sandbox.undecided() == 0, AT_REST_SECONDS)
        findings = verify(app.ledger)
        if findings:
            raise RoundFailedError(f"the ledger of a round does not verify: {findings[0]}")
        return [_seen(setting, app, one, ask, at_point=ask.operation_id in hit) for ask in asks]
    except SettledError as error:
        raise RoundFailedError(str(error)) from error
    finally:
        app.close()


def _ask(setting: Setting, app: App, one: Round, trouble: Trouble) -> _Ask:
    arguments = setting.sandbox.arguments(f"case-{secrets.token_hex(6)}")
    if one.point == "after commit" and trouble.call in (Fault.NONE, Fault.LOSE_ANSWER, Fault.ERROR_AFTER_COMMIT, Fault.MALFORMED_ANSWER):
        setting.sandbox.arm(arguments, trouble._replace(call=Fault.HANG))  # what its answer would be does not matter: it never comes
    else:
        setting.sandbox.arm(arguments, trouble, held=one.point == "mid-request")
    submitted = app.submit(setting.contract, arguments)
    if submitted.reason == "awaiting_approval":
        app.approve(submitted.operation_id, actor="certify", reason="a sandbox")
    return _Ask(trouble, arguments, submitted.operation_id)


# ------------------------------------------------------------------ workers


def _live(setting: Setting, app: App, one: Round, folder: Path, asks: list[_Ask]) -> set[str]:
    """Start workers, one after the other, until every operation is at rest. Returns which operations were at the point."""
    first = _FIRST_KILL if one.point in BY_THE_SECOND else one.point
    with _worker(setting, folder, point=first, host=one.host) as worker:
        if first == NONE:
            _rest(app, asks, worker)
            return {ask.operation_id for ask in asks}
        hit = _meet_the_end(setting, one, folder, asks, app, worker)
    if one.point in BY_THE_SECOND:
        with _worker(setting, folder, point=one.point, host=one.host) as second:
            _wait(lambda: second.poll() is not None or _at_rest(app, asks), _REACH_SECONDS)
            hit = _dispatched(app, asks) if second.poll() is not None else set()
    host = one.host if one.point not in BY_THE_SECOND else NONE
    with _worker(setting, folder, point=NONE, host=host) as last:
        _rest(app, asks, last)
    return hit


def _meet_the_end(setting: Setting, one: Round, folder: Path, asks: list[_Ask], app: App, worker: subprocess.Popen[bytes]) -> set[str]:
    """Return when the worker is at its point, with the operations that are there. One that never comes there has no such point."""

    def reached() -> set[str]:
        if one.point in IN_HANDLER:
            return {mark.read_text() for mark in folder.glob("reached-*") if not mark.suffix}
        return {ask.operation_id for ask in asks if setting.sandbox.reached(ask.arguments, AT_DESTINATION[one.point])}

    if one.point not in IN_HANDLER and one.point not in AT_DESTINATION:
        _wait(lambda: worker.poll() is not None or _at_rest(app, asks), _REACH_SECONDS)
        return _dispatched(app, asks) if worker.poll() is not None else set()
    _wait(lambda: bool(reached()) or worker.poll() is not None or _at_rest(app, asks), _REACH_SECONDS)
    _wait(lambda: len(reached()) >= len(asks) or worker.poll() is not None, _STRAGGLERS_SECONDS)
    return {ask.operation_id for ask in asks if ask.operation_id in reached() and not app.get(ask.operation_id).settled}


def _dispatched(app: App, asks: list[_Ask]) -> set[str]:
    """Return the operations that were under way when the worker ended; before its first claim, those that it was claiming."""
    return {ask.operation_id for ask in asks if not app.get(ask.operation_id).settled}


def _rest(app: App, asks: list[_Ask], worker: subprocess.Popen[bytes]) -> None:
    _wait(lambda: _at_rest(app, asks) or worker.poll() is not None, AT_REST_SECONDS)
    if worker.poll() is not None and not _at_rest(app, asks):
        raise RoundFailedError(f"a worker ended with {worker.returncode} by itself")


def _at_rest(app: App, asks: list[_Ask]) -> bool:
    return all(_is_at_rest(app.get(ask.operation_id)) for ask in asks)


def _is_at_rest(operation: Operation) -> bool:
    waits_for_a_person = operation.next_action is NextAction.ASK_HUMAN or (operation.reason is not None and not operation.in_progress)
    return operation.settled or waits_for_a_person


@contextlib.contextmanager
def _worker(setting: Setting, folder: Path, *, point: str, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker; at the end of the block it and everything it started is killed at once, as a control group is."""
    token = f"CERTIFIED_WORKER={secrets.token_hex(8)}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    places = dict.fromkeys([str(setting.here), *(path for path in sys.path if path)])
    environ = {
        **kept,
        **setting.environment,
        "PYTHONPATH": os.pathsep.join(places),
        certified.APP: setting.app_reference,
        certified.TERMS: json.dumps(setting.terms),
        certified.FOLDER: str(folder),
        certified.POINT: "" if point == NONE else point,
        certified.HOST: "" if host == NONE else host,
        token.partition("=")[0]: token.partition("=")[2],
    }
    with (folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", certified.__name__], cwd=setting.here, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        _kill_all(token)


def _kill_all(token: str) -> None:
    """Kill every process that carries the token, until there is none."""
    wanted = token.encode()
    while True:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                carries = wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if carries and Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(name))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until_us = monotonic_us() + round(seconds * 1_000_000)
    while not condition():
        if monotonic_us() > until_us:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


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
