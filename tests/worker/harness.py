"""Drive the worker's pump by hand, on one thread, under a virtual clock, with reports that a test writes itself.

The ledger, the incarnation and its flight recorder are real; only time and the executors are the test's own.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from settled import App
from settled.core.evidence import ProbeResult
from settled.core.fold import Event
from settled.core.limits import Limits
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.words import FenceBasis, Isolation
from settled.execution.job import End, Job, Key, Kind, Report
from settled.presence import Presence
from settled.steps.ends import Settled
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner
from settled.store.reads import find_row, read_events
from settled.testing import VirtualClock
from settled_worker.pump import Pump, Starts
from settled_worker.sweeps import Sweeper, Swept

K: dict[str, Any] = {"provider_idempotency_key": lambda a: f"key:{a['n']}", "provider_idempotency_guaranteed": True}
"""Terms under which the key guarantee holds, as long as a retry budget is left."""


def nothing(arguments: dict[str, Any]) -> None:
    """Stand for a handler that no test here ever calls: reports are built by hand."""


def make_app(folder: Path, clock: VirtualClock, *, name: str = "settled.db", **limits: Any) -> App:
    """Return an App on a ledger of its own in `folder`; an existing one is opened."""
    app = App(folder / name, clock=clock, limits=Limits(**limits))
    app.create_database()
    app.shell.draw = lambda: 0.0
    return app


def declare(app: App, name: str = "pay", *, handler: Callable[..., Any] = nothing, **terms: Any) -> None:
    """Register a contract whose identity is the argument `n`."""
    defaults = {"isolation": "thread", "network_drain": 0, "operation_id": lambda a: f"{name}:{a['n']}"}
    app.effect(**{"name": name, **defaults, **terms})(handler)


@dataclass
class Heard:
    """A journal that remembers."""

    all: list[Settled] = field(default_factory=list)

    def settled(self, settled: Iterable[Settled]) -> None:
        self.all.extend(settled)


class Hand:
    """One worker without threads: its presence in the ledger, its pump, its sweeps, and the jobs it was told to start."""

    def __init__(
        self, app: App, *, slots: int = 8, recorder_slots: int | None = None, probe_room: int = 8, lease_seconds: float = 30.0, **pump: Any
    ) -> None:
        self.app, self.clock, self.slots = app, app.shell.clock, slots
        self.running: set[Key] = set()
        self.presence = Presence(app.shell, kind="worker", contracts=tuple(app.contracts), slots=recorder_slots or 2 * slots)
        self.heard = Heard()
        options: dict[str, Any] = {"room": self.room, "slots": self.presence, **pump}
        self.pump = Pump(shell=app.shell, me=self.presence.id, journal=self.heard, **options)
        self.examiner = Examiner(app.shell, lease_seconds=lease_seconds)
        self.sweeper = Sweeper(
            shell=app.shell, examiner=self.examiner, me=self.presence.id, ask=self._ask, probe_room=lambda: probe_room
        )
        self.jobs: list[Job] = []
        self.probes: list[Job] = []
        self.calls = 0

    def room(self, isolation: Isolation) -> int:
        return self.slots - len(self.running)

    def _ask(self, asking: Iterable[Asking]) -> None:
        found = list(asking)
        self.pump.asks(found)
        self.probes += [one.job for one in found]

    def step(self, *reports: Report, due_us: int | None = None) -> Starts:
        """Do one step, and remember what it wants started."""
        self.running -= {report.job.key for report in reports}
        starts = self.pump.step(self.clock.now(), reports, due_us=due_us)
        self.running |= {job.key for job in starts.jobs}
        self.jobs += starts.jobs
        self.calls += len(starts.jobs)
        return starts

    def start(self, *reports: Report) -> Job:
        """Do one step that must start exactly one handler; return its job."""
        (job,) = self.step(*reports).jobs
        return job

    def sweep(self, name: str) -> Swept:
        return self.sweeper.run(name)

    def probe(self) -> Job:
        """Reconcile and return the one probe that this started."""
        before = len(self.probes)
        self.sweep("reconcile")
        (job,) = self.probes[before:]
        return job

    def close(self) -> None:
        self.presence.close()


def ended(job: Job, end: End, at: Moment, **facts: Any) -> Report:
    """Return the report of a handler's end."""
    return Report(job=job, end=end, ended=at, **facts)


def returned(job: Job, at: Moment, output: Any = None, **facts: Any) -> Report:
    return ended(job, End.RETURNED, at, output=json.dumps(output), fence=FenceBasis.RETURNED, **facts)


def timed_out(job: Job, at: Moment, **facts: Any) -> Report:
    """The handler was given up; in a thread it may still run."""
    fence = FenceBasis.PROCESS_KILLED if job.isolation is Isolation.PROCESS else None
    return ended(job, End.TIMED_OUT, at, **{"fence": fence, **facts})


def answered(job: Job, at: Moment, answer: ProbeResult) -> Report:
    """Return the report of a probe."""
    assert job.kind is Kind.PROBE
    return Report(job=job, end=End.ANSWERED, answer=answer, ended=at)


def row_of(app: App, operation_id: str) -> Row:
    with app.ledger.read() as transaction:
        row = find_row(transaction, operation_id)
    assert row is not None
    return row


def events_of(app: App, operation_id: str) -> list[Event]:
    with app.ledger.read() as transaction:
        row = find_row(transaction, operation_id)
        assert row is not None
        return read_events(transaction, row)


def story(app: App, operation_id: str) -> list[str]:
    """Return the event types of an operation, in order."""
    return [event.type.value for event in events_of(app, operation_id)]


# ------------------------------------------------------------------ small steps of many tests


def submit(app: App, *numbers: int, contract: str = "pay", **options: Any) -> list[str]:
    return [app.submit(contract, {"n": number}, **options).operation_id for number in numbers]


def in_seconds(clock: VirtualClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.now().wall_us / 1e6 + seconds, UTC)


UNKNOWN = ProbeResult.unknown()


def silent(arguments: dict[str, Any]) -> ProbeResult:
    """Stand for a probe whose answers a test writes by hand."""
    return UNKNOWN


def entered(worker: Hand, operation: int = 1) -> None:
    """Let the running attempt of a row win its entry."""
    recorder = worker.presence.recorder
    slot = recorder.find(operation, 1)
    assert slot is not None and recorder.enter(slot, operation, 1, None)


def dies(worker: Hand) -> None:
    """What a SIGKILL leaves of a worker: a free lock, its recorder, its row."""
    worker.presence.incarnation.release()
