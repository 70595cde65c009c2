"""Run the real worker code under virtual time: from a seed, step by step, looking at every invariant after each of them.

Promise: the same seed gives the same log, byte for byte. A failure is played again with ever fewer steps, and the shortest list
that still violates the same invariant is told. Pump, sweeps, steps, store and core are the worker's own, over a real SQLite file;
time, processes, network, provider, power and disk troubles are simulated, in one thread.
"""

import hashlib
import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled.core.decide_operator import Decision
from settled.core.errors import LedgerUnavailableError, SettledError
from settled.core.evidence import ProbeResult
from settled.core.proposal import Verb, Wanted
from settled.core.row import Row
from settled.core.words import SETTLED, Status
from settled.execution.job import Kind
from settled.steps import notice, resolve
from settled.steps.submit import check_order, store_orders
from settled.store.creation import create_ledger
from settled.store.reads import read_row
from settled.store.sqlite_library import sqlite_module
from settled.testing.clock import WALL_START_US
from settled_worker.testing.simulate_checks import Checks, Violated
from settled_worker.testing.simulate_disk import Disk
from settled_worker.testing.simulate_host import WORKERS, Host, Killed, Ledgers, Worker
from settled_worker.testing.simulate_plan import WALL_STEPS, Step, plan_of, shrink
from settled_worker.testing.simulate_runs import Run
from settled_worker.testing.simulate_world import World

_SHM: Final = Path("/dev/shm")
_PAUSES: Final = (0.05, 0.3, 1.0, 1.0, 3.0, 3.0, 7.0, 7.0, 12.0, 12.0, 35.0, 70.0, 200.0)
_CALM_PAUSES: Final = (3.0, 7.0, 12.0, 35.0, 70.0, 200.0)
_SWEEPS: Final = ("leases", "leases", "reconcile", "reconcile", "reconcile", "escalate", "checkpoint")
_ROUNDS_MAX: Final = 160
_STORMY_ROUNDS: Final = 8
_WAKING_ROUNDS: Final = {Kind.PROBE: 20, Kind.HANDLER: 30}  # minutes after faults are over: when its answer, or its end, comes late
_COMMITS: Final = ("killed before", "killed after")


class Failure(NamedTuple):
    """A violated invariant: its number, what was seen, and the steps that lead there, as drawn and as few as were found."""

    seed: int
    number: str
    text: str
    steps: list[str]
    shortest: list[str]


class Outcome(NamedTuple):
    """One run: its log, and what was violated."""

    log: list[str]
    events: int
    operations: int
    effects: int
    violated: Violated | None


@dataclass(slots=True)
class Simulated:
    """What many runs came to. `digest` is over all logs: equal numbers give equal digests."""

    first: int
    seeds: int = 0
    steps: int = 0
    events: int = 0
    operations: int = 0
    effects: int = 0
    digest: str = ""
    failures: list[Failure] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as one object."""
        numbers = {name: getattr(self, name) for name in ("first", "seeds", "steps", "events", "operations", "effects", "digest")}
        return {**numbers, "passed": not self.failures, "failures": [one._asdict() for one in self.failures]}


class Simulator:
    """Use as `with Simulator() as simulator:`. It owns one ledger file, which each run begins anew."""

    def __enter__(self) -> "Simulator":
        self._folder = Path(tempfile.mkdtemp(prefix="settled-simulate-", dir=_SHM if _SHM.is_dir() else None))
        self._path = self._folder / "simulated.db"
        create_ledger(self._path, at_us=WALL_START_US)
        self._blank = self._path.read_bytes()
        self._ledgers = Ledgers(self._path)
        self._disk = Disk(sqlite_module())
        self._disk.__enter__()
        self._logged = logging.root.manager.disable
        logging.disable()  # the workers' lines of some thousand runs tell nobody anything; their events are the log
        return self

    def __exit__(self, *error: object) -> None:
        self._ledgers.close()
        logging.disable(self._logged)
        self._disk.__exit__(*error)
        shutil.rmtree(self._folder, ignore_errors=True)

    def play(self, seed: int, steps: Sequence[Step]) -> Outcome:
        """Play one list of steps, then let everything come to its end with faults off."""
        self._begin_anew()
        run = _Play(seed, self._path, self._ledgers, self._disk)
        violated: Violated | None = None
        try:
            run.all(steps)
        except Violated as found:
            violated = found
            run.log.append(f"violated: {found}")
        finally:
            run.close()
        return Outcome(run.log, run.checks.events, len(run.checks.references), run.effects(), violated)

    def seed(self, seed: int) -> tuple[Outcome, Failure | None]:
        """Play one seed; where it fails, find out how few of its steps fail, too."""
        steps = plan_of(seed)
        outcome = self.play(seed, steps)
        if outcome.violated is None:
            return outcome, None
        number = outcome.violated.number

        def fails(fewer: Sequence[Step]) -> bool:
            again = self.play(seed, fewer).violated
            return again is not None and again.number == number

        shortest = shrink(steps, fails)
        last = self.play(seed, shortest)
        text = outcome.violated.text if last.violated is None else last.violated.text
        return outcome, Failure(seed, number, text, [str(step) for step in steps], [line for line in last.log if line])

    def _begin_anew(self) -> None:
        """Make the file what it was at first, in place: the ledger is bound to its inode."""
        self._disk.forget()
        for beside in ("-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + beside).unlink(missing_ok=True)
        self._path.write_bytes(self._blank)
        for left in self._path.with_name(self._path.name + ".run").iterdir():
            left.unlink()


def simulate(seeds: int, *, first: int = 1, told: Callable[[int, int], None] | None = None, failures_max: int = 5) -> Simulated:
    """Play `seeds` runs from the seed `first` on. It ends early after `failures_max` failures; `told` hears how far it is."""
    found, digest = Simulated(first), hashlib.sha256()
    with Simulator() as simulator:
        for seed in range(first, first + seeds):
            outcome, failure = simulator.seed(seed)
            found.seeds += 1
            found.events += outcome.events
            found.operations += outcome.operations
            found.effects += outcome.effects
            found.steps += len(outcome.log)
            digest.update("\n".join(outcome.log).encode())
            if failure is not None:
                found.failures.append(failure)
            if told is not None:
                told(found.seeds, len(found.failures))
            if len(found.failures) >= failures_max:
                break
    found.digest = digest.hexdigest()
    return found


def log_of(seed: int) -> list[str]:
    """Return the log of one seed."""
    with Simulator() as simulator:
        return simulator.play(seed, plan_of(seed)).log


class _Play:
    """One run."""

    def __init__(self, seed: int, path: Path, ledgers: Ledgers, disk: Disk) -> None:
        self.log: list[str] = []
        self._path, self._disk = path, disk
        self.world = World()
        self.checks = Checks(self.world)
        self.world.on_send = lambda job: self.checks.before_sending(job.row, job.attempt)
        self.host = Host(self.world, ledgers, random.Random(seed).random)
        self._submitted = 0
        self._open()

    def _open(self) -> None:
        """Open the ledger for those who are no worker: who submits, who decides, who looks."""
        self._shell, _ = self.host.shell()
        self._shell.authenticator = lambda: "somebody"

    def close(self) -> None:
        """Leave nothing open."""
        self._disk.full, self._disk.at_sync = False, None
        self.host.close()

    def effects(self) -> int:
        """Count all effects."""
        return sum(self.world.count(*one) for one in self.checks.references.values())

    def all(self, steps: Sequence[Step]) -> None:
        """Play the steps, then what follows when nothing goes wrong any more."""
        for place in range(WORKERS):
            self._guarded("start", partial(self._start, place))
        for step in steps:
            self._guarded(str(step), partial(getattr(self, f"_{step.what}"), step.a, step.b))
        self._calm_down()

    def _guarded(self, name: str, do: Callable[[], str | None]) -> None:
        """Do one step; an error that nobody dealt with is a finding of its own."""
        try:
            said = do()
        except (Violated, KeyboardInterrupt):
            raise
        except Exception as error:
            raise Violated("I9", f"{name}: {type(error).__name__}: {error}") from error
        if said is not None:
            self.log.append(f"{name}: {said}")
        self.log += [f"  {line}" for line in self.checks.look(self._shell)]

    # ------------------------------------------------------------------ ordinary work

    def _submit(self, a: int, b: int) -> str:
        names = tuple(self.world.contracts)
        contract = self.world.contracts[names[a % len(names)]]
        self._submitted += 1
        arguments = {"payment": f"P{self._submitted}", "amount_cents": 100, "currency": "eur"}
        order = check_order(contract, contract.name, arguments, limits=self._shell.limits, delay=float(b % 3) if b % 4 == 0 else None)
        with self._shell.ledger.write() as transaction:
            stored = store_orders(self._shell, transaction, [order], self.world.clock.now())[0]
        self.checks.submitted(stored.row)
        return f"{stored.row.operation_id} of {contract.name}"

    def _advance(self, a: int, b: int) -> str:
        return self._pass(_PAUSES[a % len(_PAUSES)])

    def _pass(self, seconds: float) -> str:
        beating = [worker for worker in self.host.workers if worker is not None and worker.works]
        for _ in range(4 if seconds > 1 else 1):  # whoever works shows it meanwhile
            self.host.advance(seconds / (4 if seconds > 1 else 1))
            for worker in beating:
                worker.presence.beat()
        return f"{seconds} s"

    def _tick(self, a: int, b: int) -> str | None:
        return self._with(a, lambda worker: worker.tick())

    def _sweep(self, a: int, b: int) -> str | None:
        name = _SWEEPS[b % len(_SWEEPS)]
        return self._with(a, lambda worker: f"{name}: {tuple(worker.sweeper.run(name))}")

    def _go(self, a: int, b: int) -> str | None:
        run = self._run(a, stalled=False)
        if run is None:
            return None
        told = []
        for _ in range(1 + a // 100 % 3):  # a request that is to leave in time must be prepared without a long pause
            if not run.over and not run.stalled:
                run.go(b)
                told.append(run.told)
        return f"{run.job.kind} of {run.job.operation_id}, attempt {run.job.attempt}, {', '.join(told)}"

    def _run(self, a: int, *, stalled: bool) -> Run | None:
        runs = [run for run in self.host.runs() if run.stalled is stalled]
        return runs[a % len(runs)] if runs else None

    def _start(self, a: int, b: int = 0) -> str | None:
        place = a % WORKERS
        if self.host.workers[place] is not None:
            return None
        try:
            self.host.start(place)
        except LedgerUnavailableError:
            return "the store is not to be had"
        worker = self.host.workers[place]
        return None if worker is None else worker.name

    def _with(self, a: int, do: Callable[[Worker], str]) -> str | None:
        """Let a worker do something, if it can; what the store refuses is no finding."""
        worker = self.host.workers[a % WORKERS]
        if worker is None or not worker.works:
            return None
        try:
            return f"{worker.name} {do(worker)}"
        except LedgerUnavailableError:
            return f"{worker.name} meets a store that is not to be had"
        except Killed:
            self.host.kill(worker.place)
            return f"{worker.name} is killed"
        finally:
            worker.ledger.trouble = None

    # ------------------------------------------------------------------ what goes wrong

    def _kill(self, a: int, b: int) -> str | None:
        worker = self.host.workers[a % WORKERS]
        if worker is None:
            return None
        self.host.kill(worker.place)
        return worker.name

    def _kill_at_commit(self, a: int, b: int) -> str | None:
        return self._troubled(a, b, _COMMITS[b % 2])

    def _lost_commit(self, a: int, b: int) -> str | None:
        return self._troubled(a, b, "lost")

    def _troubled(self, a: int, b: int, trouble: str) -> str | None:
        worker = self.host.workers[a % WORKERS]
        if worker is None or not worker.works:
            return None
        worker.ledger.trouble = trouble
        return self._tick(a, 0) if b % 3 else self._sweep(a, b // 3)

    def _hang(self, a: int, b: int) -> str | None:
        return self._frozen(a, True)

    def _resume(self, a: int, b: int) -> str | None:
        return self._frozen(a, False)

    def _frozen(self, a: int, hung: bool) -> str | None:
        worker = self.host.workers[a % WORKERS]
        if worker is None or worker.hung is hung:
            return None
        worker.hung = hung
        return f"{worker.name} {'hangs' if hung else 'goes on'}"

    def _stall(self, a: int, b: int) -> str | None:
        """Let one handler or probe do nothing for a long time. Its limits still hold: a process is killed, a thread outlives them.

        Rather a handler whose thread has not sent, or a probe that has read and not answered: there it matters most.
        """
        runs = [run for run in self.host.runs() if not run.stalled]
        handlers = [run for run in runs if run.job.kind is Kind.HANDLER and not run.in_process and not run.sent]
        probes = [run for run in runs if run.has_read]
        chosen = (handlers, probes, runs)[b % 3] or runs
        if not chosen:
            return None
        run = chosen[a % len(chosen)]
        run.stalled = True
        return f"{run.job.kind} of {run.job.operation_id}, attempt {run.job.attempt}, {run.told}"

    def _wake(self, a: int, b: int) -> str | None:
        run = self._run(a, stalled=True)
        if run is None:
            return None
        run.stalled = False
        return f"{run.job.kind} of {run.job.operation_id}, attempt {run.job.attempt}"

    def _kill_runner(self, a: int, b: int) -> str | None:
        runs = [run for run in self.host.runs() if run.in_process]
        if not runs:
            return None
        run = runs[a % len(runs)]
        run.kill()
        return f"of {run.job.operation_id}, attempt {run.job.attempt}"

    def _busy(self, a: int, b: int) -> str | None:
        with self.host.another_writes():
            return self._tick(a, 0) if b % 2 else self._sweep(a, b)

    def _full(self, a: int, b: int) -> str | None:
        with self._failing_disk(lambda: setattr(self._disk, "full", True)):
            return self._tick(a, 0) if b % 2 else self._sweep(a, b)

    def _sync_fails(self, a: int, b: int) -> str | None:
        with self._failing_disk(lambda: setattr(self._disk, "at_sync", lambda: True)):
            return self._tick(a, 0) if b % 2 else self._sweep(a, b)

    @contextmanager
    def _failing_disk(self, fail: Callable[[], None]) -> Iterator[None]:
        fail()
        try:
            yield
        finally:
            self._disk.full, self._disk.at_sync = False, None

    def _wall(self, a: int, b: int) -> str:
        seconds = WALL_STEPS[a % len(WALL_STEPS)]
        self.world.clock.step_wall(seconds)
        return f"{seconds} s"

    def _suspend(self, a: int, b: int) -> str:
        seconds = (5.0, 60.0, 400.0)[a % 3]
        self.world.advance(seconds, lambda: None, lambda: None, awake=False)
        self.host.expire()  # timers count the time asleep, and act before anything else goes on
        return f"{seconds} s"

    def _reboot(self, a: int, b: int) -> str:
        self.host.boot((5.0, 30.0, 300.0)[a % 3])
        self._disk.forget()
        self._open()
        return "the host starts anew"

    def _power_cut(self, a: int, b: int) -> str:
        """Cut the power now, or at a sync in the middle of a worker's step; of what was not synced some is kept, or nothing."""
        keeps = (lambda _: False, lambda _: True, lambda index: index % 2 == 0, lambda index: index % 3 != 0)[b % 4]
        image: list[dict[str, bytes]] = []
        if a % 3:

            def at_sync() -> bool:
                image.append(self._disk.image(keeps))
                return True

            with self._failing_disk(lambda: setattr(self._disk, "at_sync", at_sync)):
                self._tick(a // 3, 0)
        left = image[0] if image else self._disk.image(keeps)
        self.host.close()
        for name, content in left.items():
            Path(name).write_bytes(content)
        self._path.with_name(self._path.name + "-shm").unlink(missing_ok=True)
        self._disk.forget()
        self.host.boot()
        self._open()
        self.checks.whole(self._shell.ledger)
        return f"{'at a sync' if image else 'between steps'}, {sum(map(len, left.values()))} bytes are left"

    # ------------------------------------------------------------------ people and providers

    def _row(self, a: int, *rather: Status) -> Row | None:
        """Return an operation, rather one of these statuses: what is done to the others is refused."""
        ids = [id_ for id_ in self.checks.references if id_ in self.checks.rows and self.checks.rows[id_].status in rather]
        ids = ids or list(self.checks.references)
        if not ids:
            return None
        with self._shell.ledger.read() as transaction:
            return read_row(transaction, ids[a % len(ids)])

    def _person(self, a: int, b: int) -> str | None:
        """A person looks at the provider, and decides by what is there now; what is refused to them stays as it is."""
        row = self._row(a, Status.OUTCOME_UNKNOWN, Status.QUARANTINED)
        return None if row is None else self._looks_and_decides(row, retries=b % 2 == 1)

    def _looks_and_decides(self, row: Row, *, retries: bool) -> str | None:
        if row.status not in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED):
            return None
        if self.world.commits_later_than_declared(row.contract) and self.world.undecided(*self.checks.references[row.id]):
            return None  # nothing bounds when it commits: who decides here asks the provider before
        verb = self._true_verb(row, retries=retries)
        decision = Decision(
            actor="somebody", reason="looked", evidence_reference="the provider's list", expected_version=row.version, os_user="somebody"
        )
        return self._decided(row, verb, lambda: resolve.resolve(self._shell, row.operation_id, Wanted(verb=verb, decision=decision), None))

    def _true_verb(self, row: Row, *, retries: bool) -> Verb:
        """Say what a person decides who sees no more than the provider's list. When that is too early is the core's to know."""
        if self.world.count(*self.checks.references[row.id]):
            return "confirm"
        return "authorize-retry" if retries else "reject"

    def _decided(self, row: Row, verb: str, decide: Callable[[], object]) -> str:
        try:
            decide()
        except SettledError as refused:
            return f"{verb} {row.operation_id}: {type(refused).__name__}"
        return f"{verb} {row.operation_id}"

    def _cancel(self, a: int, b: int) -> str | None:
        row = self._row(a, Status.PREPARED)
        return None if row is None else self._calls_off(row)

    def _calls_off(self, row: Row) -> str:
        return self._decided(row, "cancel", lambda: resolve.cancel(self._shell, row.operation_id, "somebody", "not wanted"))

    def _stop(self, a: int, b: int) -> str | None:
        row = self._row(a, Status.DISPATCHED)
        if row is None:
            return None
        return self._decided(row, "stop", lambda: resolve.request_stop(self._shell, row.operation_id, "somebody", "not wanted"))

    def _notice(self, a: int, b: int) -> str | None:
        """The provider tells of an effect by itself."""
        row = self._row(a, Status.DISPATCHED, Status.OUTCOME_UNKNOWN)
        if row is None or row.provider_reference is None or not self.world.count(*self.checks.references[row.id]):
            return None
        found = ProbeResult.committed(reference=row.provider_reference)
        told = {"operation_id": None, "provider_reference": row.provider_reference, "source": "webhook", "result": found}
        return self._decided(row, "notice", lambda: notice.add_evidence(self._shell, **told))  # type: ignore[arg-type]

    # ------------------------------------------------------------------ the end

    def _calm_down(self) -> None:
        """End all faults, and let the workers work until nothing moves any more; then let people decide the rest.

        The workers' faults end first: for some rounds they do all their work while network and providers still fail.
        """
        self.log.append("the workers' faults are over")
        for round_ in range(_ROUNDS_MAX):
            if round_ == _STORMY_ROUNDS:
                self.world.calm = True
                self.log.append("all faults are over")
            self._guarded("calm", partial(self._calm_round, round_))
            told = not any(worker is not None and (worker.inbox or worker.pump.owes) for worker in self.host.workers)
            if told and not self.host.runs() and not self.checks.unsettled():
                break
        self.world.calm = True
        self.checks.at_the_end()
        self._guarded("calm", lambda: self.host.advance(400.0))  # what travels still arrives
        for row in list(self.checks.rows.values()):
            if row.status not in SETTLED:
                self._guarded("people", partial(self._last_word, row))
        for row in self.checks.rows.values():
            if row.status not in SETTLED:
                raise Violated("I4", f"{row.operation_id} of {row.contract} waits for a person ({row.reason}), and is not settled by one")
        self.checks.whole(self._shell.ledger)

    def _calm_round(self, round_: int) -> None:
        for place, worker in enumerate(self.host.workers):
            if worker is None:
                self.host.start(place)
            else:
                worker.hung = False
        for worker in self.host.workers:
            assert worker is not None
            for name in ("leases", "reconcile", "escalate"):
                worker.sweeper.run(name)
            worker.tick()
        for _ in range(3):
            for run in self.host.runs():
                run.stalled = run.stalled and round_ < _WAKING_ROUNDS[run.job.kind]
                if not run.stalled:
                    run.go(0 if self.world.calm else int(self.host.draw() * 1000))
            self.host.advance(0.05)
        self._pass(_CALM_PAUSES[min(round_ // 8, len(_CALM_PAUSES) - 1)])

    def _last_word(self, row: Row) -> str | None:
        return self._calls_off(row) if row.status is Status.PREPARED else self._looks_and_decides(row, retries=False)
