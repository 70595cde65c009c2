"""A simulated host: two workers over one real ledger file, their processes and threads, and what can happen to all of them.

Promise: pump, steps, sweeps, recorder, store and core are the worker's own. What the system would show of processes is told by
this host instead, and a worker that is killed loses everything but its files.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from settled.clock import SystemClock
from settled.core.errors import LedgerUnavailableError
from settled.core.limits import Limits
from settled.core.words import Isolation
from settled.execution.incarnation import Incarnation
from settled.execution.job import Report
from settled.presence import Presence
from settled.shell import Shell
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner, Processes
from settled.store.ledger import Ledger
from settled.store.scope import Scope
from settled.store.transaction import Transaction
from settled.store.workers import WorkerRow
from settled_worker.due import DueClock
from settled_worker.pump import Pump
from settled_worker.sweeps import Sweeper
from settled_worker.testing.simulate_runs import Run
from settled_worker.testing.simulate_world import World

WORKERS: Final = 2
_SLOTS: Final = 3
_LIMITS: Final = Limits(busy_timeout_seconds=0.0)


class Killed(BaseException):
    """This worker's process ends here and now. Not an Exception: nothing of the worker may survive it."""


class TroubledLedger(Ledger):
    """The ledger of one process, whose next commit can be made to go wrong."""

    trouble: str | None = None

    def rest(self) -> None:
        """Close the files, and keep what is compiled: it says nothing of any run."""
        if self._engine is not None:
            self.connections.close()
            self._engine.dispose()
            self.turnstile.close()
        self.trouble = None

    def write(self) -> Scope:
        """Run one write transaction, with what was ordered for its commit."""
        return TroubledScope(self, writes=True)


class TroubledScope(Scope):
    """A transaction that is killed before or after its commit, or whose commit is done and not acknowledged."""

    __slots__ = ("_trouble",)

    def __enter__(self) -> Transaction:
        assert isinstance(self._ledger, TroubledLedger)
        self._trouble, self._ledger.trouble = self._ledger.trouble, None
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and self._trouble == "killed before":
            killed = Killed()
            super().__exit__(Killed, killed, None)
            raise killed
        super().__exit__(kind, error, trace)
        if error is None and self._trouble == "killed after":
            raise Killed
        if error is None and self._trouble == "lost":
            raise LedgerUnavailableError("the answer to the commit was lost.")


class SimulatedPresence(Presence):
    """Gives no slot back once its process was killed: nobody is there to do it."""

    dead = False

    def give_slot(self, slot: int, row: int, attempt: int) -> None:
        """Free a slot, if this process still lives."""
        if not self.dead:
            super().give_slot(slot, row, attempt)


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process. `place` is its number on the host, `name` that of this start of it."""

    host: "Host"
    place: int
    name: str
    hung: bool = False
    alive: bool = True
    inbox: list[Report] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    ledger: TroubledLedger = field(init=False)
    presence: SimulatedPresence = field(init=False)
    pump: Pump = field(init=False)
    sweeper: Sweeper = field(init=False)
    due: DueClock = field(init=False)

    def __post_init__(self) -> None:
        """Start it. Raises LedgerUnavailableError where the store cannot be written."""
        shell, self.ledger = self.host.shell()
        born = Incarnation(
            id=self.name, boot_id=shell.clock.now().boot_id, pid=-1, start_ticks=None, pid_namespace=None,
            lock_path=self.ledger.run_directory / f"{self.name}.lock", lock_fd=-1, lock_dev=0, lock_inode=0,
        )  # fmt: skip
        self.presence = SimulatedPresence(shell, kind="worker", contracts=tuple(shell.contracts), slots=2 * _SLOTS, incarnation=born)
        self.pump = Pump(shell=shell, me=self.presence.id, slots=self.presence, room=self._room, journal=self)
        examiner = Examiner(shell, look_at=self.host.look_at)
        self.sweeper = Sweeper(shell=shell, examiner=examiner, me=self.presence.id, ask=self._ask, probe_room=lambda: _SLOTS)
        self.due = DueClock(shell.clock)

    @property
    def works(self) -> bool:
        """Whether it lives and is not frozen."""
        return self.alive and not self.hung

    def tick(self) -> str:
        """Do one step of the pump, and start what it wants started."""
        self.presence.beat()
        now, arrived = self.host.world.clock.now(), self.inbox
        self.inbox = []
        starts = self.pump.step(now, arrived, due_us=self.due.wall_us(now))
        self._start(starts.jobs)
        for key in starts.stops:
            for run in self.runs:
                if run.job.key == key and not run.over:
                    run.stop()
        return f"recorded {len(arrived)}, started {len(starts.jobs)}"

    def settled(self, settled: Sequence[Any]) -> None:
        """Be the pump's journal: the log is read from the ledger."""

    def _room(self, isolation: Isolation) -> int:
        return _SLOTS - sum(not run.over and not run.given_up and run.job.isolation is isolation for run in self.runs)

    def _ask(self, asking: Sequence[Asking]) -> None:
        self.pump.asks(asking)
        self._start([one.job for one in asking])

    def _start(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            self.runs.append(Run(job=job, world=self.host.world, recorder=self.presence.recorder, tell=self._tell))

    def _tell(self, report: Report) -> None:
        if self.alive:
            self.inbox.append(report)


class Ledgers:
    """The ledger of one file, as many times as there are processes at once: opening it anew for each start would be most of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: list[TroubledLedger] = []
        self._free: list[TroubledLedger] = []

    def take(self) -> TroubledLedger:
        """Return one that nobody uses."""
        if not self._free:
            self._free.append(TroubledLedger(os.fspath(self._path), limits=_LIMITS, monotonic_us=SystemClock().monotonic_us))
            self._all.append(self._free[-1])
        return self._free.pop()

    def give(self, ledger: TroubledLedger) -> None:
        """Let another process have it."""
        ledger.rest()
        self._free.append(ledger)

    def rest(self) -> None:
        """Let no file be open."""
        for ledger in self._all:
            ledger.rest()
        self._free = list(self._all)

    def close(self) -> None:
        """Close all for good."""
        for ledger in self._all:
            ledger.close()


@dataclass(slots=True, eq=False)
class Host:
    """The machine. `ledgers` are of its ledger file, `draw` is the chance of its workers."""

    world: World
    ledgers: Ledgers
    draw: Callable[[], float]
    workers: list[Worker | None] = field(default_factory=lambda: [None] * WORKERS)
    all: dict[str, Worker] = field(default_factory=dict)  # every start since the last boot, by name
    _starts: int = 0

    def shell(self) -> tuple[Shell, TroubledLedger]:
        """Return the means of one more process on this host."""
        ledger = self.ledgers.take()
        return Shell(ledger=ledger, clock=self.world.clock, contracts=self.world.contracts, limits=_LIMITS, draw=self.draw), ledger

    def start(self, place: int) -> None:
        """Start a worker, unless one is there."""
        if self.workers[place] is None:
            self._starts += 1
            worker = Worker(self, place, f"w{self._starts}")
            self.workers[place] = self.all[worker.name] = worker

    def kill(self, place: int) -> None:
        """Kill a worker's process: its threads die with it, its runners go on."""
        worker, self.workers[place] = self.workers[place], None
        if worker is None:
            return
        worker.alive, worker.presence.dead = False, True
        worker.runs = [run for run in worker.runs if run.in_process]
        self.ledgers.give(worker.ledger)

    def boot(self, away_seconds: float = 30.0) -> None:
        """End everything on this host and start it anew; no worker runs yet."""
        self.close()
        self.world.reboot(away_seconds)

    def close(self) -> None:
        """End every process, without a word to the ledger."""
        for worker in self.all.values():
            worker.alive, worker.presence.dead, worker.runs = False, True, []
            worker.presence.recorder.close()
        self.all.clear()
        self.workers = [None] * WORKERS
        self.ledgers.rest()

    # ------------------------------------------------------------------ what the system shows

    def look_at(self, worker: WorkerRow) -> Processes:
        """Say what this host's system would show of an incarnation."""
        found = self.all.get(worker.incarnation)
        held = found is not None and (found.alive or any(not run.over for run in found.runs))
        return Processes(not held, None if held else 0, None)

    # ------------------------------------------------------------------ runs and their time

    def runs(self) -> list[Run]:
        """Return what can go on now: processes, and threads of workers that are not frozen."""
        return [
            run
            for worker in self.all.values()
            for run in worker.runs
            if not run.over and (run.in_process or worker.works)
        ]

    def left_us(self) -> int | None:
        """Return in how many microseconds the next timer of a run acts; None for none."""
        now_us = self.world.clock.now().boot_us
        limits = [run.limit_us for run in self.runs()]
        return min((max(0, limit - now_us) for limit in limits if limit is not None), default=None)

    def expire(self) -> None:
        """Let act whatever timer is due."""
        now_us = self.world.clock.now().boot_us
        for run in self.runs():
            if run.limit_us is not None and run.limit_us <= now_us:
                run.expire()
        for worker in self.all.values():
            worker.runs = [run for run in worker.runs if not run.over]

    def advance(self, seconds: float) -> None:
        """Let time pass, and timers act at their times."""
        self.world.advance(seconds, self.left_us, self.expire)

    # ------------------------------------------------------------------ the store's troubles

    @contextmanager
    def another_writes(self) -> Iterator[None]:
        """Let another program hold the write lock."""
        other = self.ledgers.take()
        try:
            with other.write():
                yield
        finally:
            self.ledgers.give(other)
