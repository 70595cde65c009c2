"""A ledger in a folder, an App over it, a clock that a test moves, and a worker that a test turns by hand.

Promise: everything in here is the product's own; only time and the order of steps belong to the test. At its end the whole
ledger is audited: each row must be the fold of its events.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import settled
from settled import App, Effect, Operation, ProbeResult, RetryPolicy
from settled.clock import boot_id_short, boot_us, monotonic_us, wall_us
from settled.core.limits import DEFAULTS, Limits
from settled.core.moment import Moment
from settled.core.words import EventType, Isolation
from settled.execution.job import Report
from settled.execution.pool import Execution
from settled.presence import Presence
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner
from settled.store.audit import verify
from settled_worker.pump import Pump
from settled_worker.sweeps import Sweeper
from tests.conftest import eventually
from tests.lib.children import Child

ROOT = Path(settled.__file__).parents[2]
HERE = Path(__file__).parent
ARGUMENTS = {"invoice_id": "INV-1042", "amount": 2500}
OPERATION_ID = "invoice:INV-1042:capture"
KEY = "capture:INV-1042"


class MovableClock:
    """The machine's clocks, moved on by a test; `freeze` makes them stand still, so that a test can name a microsecond."""

    def __init__(self) -> None:
        self._passed_us = self._wall_step_us = 0
        self._frozen: tuple[int, int] | None = None

    def now(self) -> Moment:
        wall, boot = self._frozen or (wall_us(), boot_us())
        return Moment(wall + self._passed_us + self._wall_step_us, boot + self._passed_us, boot_id_short())

    def monotonic_us(self) -> int:
        return monotonic_us() + self._passed_us

    def freeze(self) -> None:
        self._frozen = (wall_us(), boot_us())

    def advance(self, seconds: float) -> None:
        """Let time pass on every clock."""
        self._passed_us += round(seconds * 1_000_000)


class HandWorker:
    """The worker's own parts, each step of which is a call. `hold` keeps arrived reports back until `release`."""

    def __init__(self, app: App, *, contracts: Sequence[str] | None = None) -> None:
        shell = app.shell
        self.app, self.shell = app, shell
        self.presence = Presence(shell, kind="worker", contracts=tuple(contracts or app.contracts), slots=16)
        self.arrived: list[Report] = []
        self._lock = threading.Lock()
        self.execution = Execution(
            resolve=app.contract,
            arrived=self._take,
            clock=shell.clock.now,
            slots=8,
            recorder=self.presence.recorder,
            incarnation=self.presence.incarnation,
        )
        self.pump = Pump(shell=shell, me=self.presence.id, slots=self.presence, room=self.room, journal=self)
        self.examiner = Examiner(shell)
        self.sweeper = Sweeper(shell=shell, examiner=self.examiner, me=self.presence.id, ask=self._ask, probe_room=lambda: 8)

    def settled(self, settled: Sequence[Any]) -> None:
        """The journal's part: nothing is told."""

    def room(self, isolation: Isolation) -> int:
        return self.execution.free(isolation)

    def step(self) -> int:
        """Record what has arrived, claim, start; return how many handlers were started."""
        with self._lock:
            arrived, self.arrived = self.arrived, []
        starts = self.pump.step(self.shell.clock.now(), arrived)
        for job in starts.jobs:
            self.execution.start(job)
        for key in starts.stops:
            self.execution.stop(key)
        return len(starts.jobs)

    def turn(self) -> int:
        """Claim, run to the first report of each handler, record. Return how many handlers were started."""
        started = self.step()
        self.record()
        return started

    def record(self) -> None:
        """Wait for what runs and record it, without a new claim."""
        claiming, self.pump.claiming = self.pump.claiming, False
        eventually(lambda: not self.execution.running and not self.execution._telling)
        self.step()
        self.pump.claiming = claiming

    def reconcile(self) -> None:
        """Run the reconcile sweep, and record the answers of the probes that it started."""
        self.sweeper.reconcile()
        self.record()

    def leases(self, times: int = 1) -> None:
        for _ in range(times):
            self.sweeper.leases()

    def close(self) -> None:
        self.execution.close(kill=True)
        self.execution.join(5.0)
        self.presence.close()

    def _take(self, report: Report) -> None:
        with self._lock:
            self.arrived.append(report)

    def _ask(self, asking: Sequence[Asking]) -> None:
        self.pump.asks(asking)
        for one in asking:
            self.execution.start(one.job)


class Bench:
    """One App with its ledger. `effect` declares contracts as the promises page assumes them, but in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, MovableClock()
        self.app = App(folder / "settled.db", clock=self.clock)
        self.app.create_database()
        self._apps, self._workers = [self.app], list[HandWorker]()
        self._gates: list[threading.Event] = []

    @classmethod
    def opened(cls, folder: Path) -> Iterator["Bench"]:
        """For a fixture: `yield from Bench.opened(tmp_path)`."""
        bench = cls(folder)
        try:
            yield bench
        finally:
            bench.close()
        assert verify(bench.again().ledger) == []
        bench.close()

    def effect(self, handler: Callable[..., Any], *, app: App | None = None, **terms: Any) -> Effect:
        return (app or self.app).effect(**(plain_terms() | terms))(handler)

    def again(self, limits: Limits = DEFAULTS) -> App:
        """Another App over the same ledger, as another process would have it."""
        app = App(self.folder / "settled.db", clock=self.clock, limits=limits)
        self._apps.append(app)
        return app

    def impatient(self) -> App:
        """Another App, which does not wait long for a store that somebody else has locked."""
        return self.again(Limits(busy_timeout_seconds=0.2))

    def worker(self, app: App | None = None, **more: Any) -> HandWorker:
        worker = HandWorker(app or self.app, **more)
        self._workers.append(worker)
        return worker

    def gate(self) -> threading.Event:
        """An event that a handler may wait for; opened at the end of the test at the latest."""
        gate = threading.Event()
        self._gates.append(gate)
        return gate

    def types(self, operation_id: str = OPERATION_ID) -> list[str]:
        return [event.type for event in self.app.events(operation_id)]

    def submitted(self) -> list[str]:
        return [one.operation_id for one in self.app.list(limit=1000)]

    def close(self) -> None:
        for gate in self._gates:
            gate.set()
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        for app in self._apps:
            app.close()


def operation_id_of(arguments: dict[str, Any]) -> str:
    return f"invoice:{arguments['invoice_id']}:capture"


def key_of(arguments: dict[str, Any]) -> str:
    return f"capture:{arguments['invoice_id']}"


def plain_terms() -> dict[str, Any]:
    """The terms that a row of the promises page assumes where it says nothing else; no retry waits for chance."""
    return {
        "name": "capture_payment",
        "operation_id": operation_id_of,
        "isolation": "thread",
        "network_drain": 0,
        "retry": one_attempt(),
    }


def one_attempt() -> RetryPolicy:
    return RetryPolicy(max_attempts=1, jitter=0)


def guaranteed(max_attempts: int = 3) -> dict[str, Any]:
    """K: the key guarantee holds, and retry budget is left."""
    return {
        "provider_idempotency_key": key_of,
        "provider_idempotency_guaranteed": True,
        "retry": RetryPolicy(max_attempts=max_attempts, jitter=0),
    }


def seen(op: Operation, type_: EventType | str) -> list[Any]:
    """Return the evidence of one event type."""
    return [one for one in op.evidence if one["type"] == type_]


def spawn(code: str, *arguments: object, database: Path | None = None, extra: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start Python with the product and this folder's apps importable."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT / 'worker'}:{ROOT / 'cli'}:{HERE}", **(extra or {})}
    environ.pop("SETTLED_DATABASE", None)
    if database is not None:
        environ["SETTLED_DATABASE"] = str(database)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environ, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(code: str, *arguments: object, expect: int = 0, **more: Any) -> str:
    """Run Python code in a process of its own to its end; return what it printed."""
    child = spawn(code, *arguments, **more)
    out, err = child.communicate(timeout=60)
    assert child.returncode == expect, (child.returncode, out, err)
    return out.strip()


class Calls:
    """A handler that ends as it is told, attempt by attempt; the last way is the way of all that follow."""

    def __init__(self, *ends: Any) -> None:
        self.ends, self.count, self.keys = ends, 0, set[str | None]()

    def __call__(self, idempotency_key: str | None = None) -> Any:
        self.keys.add(idempotency_key)
        end = self.ends[min(self.count, len(self.ends) - 1)]
        self.count += 1
        if isinstance(end, BaseException):
            raise end
        return end() if callable(end) else end


def attempts(count: int) -> RetryPolicy:
    return RetryPolicy(max_attempts=count, jitter=0)


ABSENT = ProbeResult.not_committed(terminal=True, healthy=True)


LOCK = """
import sys, time
from settled.store.sqlite_library import sqlite_module
connection = sqlite_module().connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
if sys.argv[2] == "0":
    sys.stdin.readline()
else:
    time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""


def locked(bench: Bench, *, seconds: float = 0) -> Child:
    """Another program that holds the write lock, for `seconds` or until the end of the block."""
    holder = Child(LOCK, bench.app.ledger.path, seconds)
    assert holder.hear() == "locked"
    return holder
