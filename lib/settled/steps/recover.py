"""Examine incarnations that own rows, and take over from those that are proved dead or lost their lease.

Losing a lease opens an inquiry, never a second dispatch: what may have been entered becomes an unknown outcome, and only
what the flight recorder proves never entered (or never sent) goes back to prepared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from settled.core.case import Case
from settled.core.decide_end import End, EndFacts, decide_end
from settled.core.decide_evidence import decide_fence
from settled.core.decide_lease import Examined, Looks, judge_owner, lease_is_lost, look
from settled.core.fold import Event
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.words import FenceBasis, Status
from settled.doorbell import SUFFIX as BELL
from settled.execution.cgroup import group_is_empty, remove_group
from settled.execution.incarnation import RECORDER_SUFFIX, lock_is_free, marked_processes, remove_lock_file, shows_processes_of
from settled.execution.recorder import Phase, Recorder, RecorderUnreadableError
from settled.shell import Shell
from settled.steps.readable import readable_case
from settled.store import waiting, workers
from settled.store.reads import read_row
from settled.store.transaction import Transaction
from settled.store.workers import WorkerRow
from settled.store.writer import Move, record


class Judged(NamedTuple):
    """What an examination found: the owner is lost, so that its rows may be taken over; `gone` that it surely ended."""

    worker: WorkerRow
    lost: bool
    examined: Examined


Moved = tuple[Row, Sequence[Event]]


class Processes(NamedTuple):
    """What the system shows of an incarnation; None where it shows nothing that proves anything."""

    lock_is_free: bool | None
    marked: int | None
    group_is_empty: bool | None


LookAt = Callable[[WorkerRow], Processes]


def look_at_processes(worker: WorkerRow) -> Processes:
    """Look at the lock first and at the marks second: a fork that execs in between then appears in one of the two."""
    path = Path(worker.lock_path)
    free = lock_is_free(path, worker.lock_device, worker.lock_inode)
    marked = _marked(worker, path) if free else None
    return Processes(free, marked, group_is_empty(Path(worker.cgroup)) if worker.cgroup and free else None)


class Examiner:
    """Looks at other incarnations over time. Holds what it saw of heartbeat counters, by its own monotonic clock.

    `look_at` is injected by a simulation, whose processes the system does not know.
    """

    def __init__(self, shell: Shell, *, lease_seconds: float | None = None, look_at: LookAt = look_at_processes) -> None:
        self._shell, self._look_at = shell, look_at
        self._lease_seconds = shell.limits.lease_seconds if lease_seconds is None else lease_seconds
        self._seen: dict[int, Looks] = {}

    def examine(self, worker: WorkerRow) -> Judged:
        """Judge one incarnation now. Only reads; every question that has no answer is answered on the safe side."""
        examined = self.judge(worker)
        return Judged(worker, examined.gone or self._lease_lost(worker), examined)

    def judge(self, worker: WorkerRow) -> Examined:
        """Say what is proved of its end, whatever its heartbeat shows."""
        same_boot = worker.boot_id == self._shell.clock.now().boot_id
        free, marks, empty = self._look_at(worker)
        return judge_owner(same_boot=same_boot, lock_is_free=free, marked_processes=marks, handed_cgroup_empty=empty)

    def forget(self, alive: Iterable[int]) -> None:
        """Keep looks only of incarnations that still own something."""
        keep = set(alive)
        self._seen = {worker: looks for worker, looks in self._seen.items() if worker in keep}

    def _lease_lost(self, worker: WorkerRow) -> bool:
        counter = read_counter(worker)
        if counter is None:
            counter = -1  # an unreadable recorder shows no life, and has to show none for a whole lease
        now_us = self._shell.clock.monotonic_us()
        looks = self._seen[worker.id] = look(self._seen.get(worker.id), counter, now_us)
        return lease_is_lost(looks, now_us, self._lease_seconds, self._shell.limits.lease_looks)


def recover_leases(shell: Shell, examiner: Examiner, me: int | None) -> list[Moved]:
    """Take over the rows of every incarnation that is lost, then look for fences that are still missing.

    Nothing of a copied ledger is judged here: the locks that its rows name belong to the original.
    """
    if shell.ledger.misplaced:
        return []
    with shell.ledger.read() as transaction:
        owners = set(waiting.lease_owners(transaction)) | set(waiting.probe_owners(transaction))
        found = workers.find(transaction, owners - {me})
    judged = [examiner.examine(worker) for worker in found.values()]
    examiner.forget(found)
    moved: list[Moved] = []
    for one in judged:
        if one.lost:
            moved += _take_over(shell, one)
    return moved + _find_fences(shell, examiner, me)


def recover_row(shell: Shell, examiner: Examiner, row: Row, me: int | None) -> Row:
    """Run the leases step for one row, so that a dead caller's row needs no worker; return the row after it."""
    if row.status is not Status.DISPATCHED or row.lease_owner in (None, me) or shell.ledger.misplaced:
        return row
    with shell.ledger.read() as transaction:
        owner = workers.find(transaction, {row.lease_owner}).get(row.lease_owner)
    judged = None if owner is None else examiner.examine(owner)
    if judged is None or not judged.lost:
        return row
    with shell.ledger.write() as transaction:
        fresh = read_row(transaction, row.id)
        if fresh.status is Status.DISPATCHED and fresh.lease_owner == row.lease_owner:
            _end_leases(shell, transaction, judged, [fresh])
        return read_row(transaction, row.id)


def end_unstarted(shell: Shell, seen: Row) -> Row:
    """End a dispatch of our own whose handler was surely never started; return the row after it."""
    with shell.ledger.write() as transaction:
        row = read_row(transaction, seen.id)
        if row.status is not Status.DISPATCHED or (row.lease_owner, row.attempt) != (seen.lease_owner, seen.attempt):
            return row
        facts = EndFacts(end=End.NEVER_ENTERED, fence=FenceBasis.NEVER_ENTERED)
        done = record(transaction, [Move(row, decide_end(shell.full_case(transaction, row, shell.clock.now()), facts))])[0]
        return done.row or row


def read_counter(worker: WorkerRow) -> int | None:
    """Return an incarnation's heartbeat counter, None where its recorder cannot be believed."""
    try:
        recorder = Recorder.open(recorder_path(worker), incarnation=worker.incarnation, boot_id=worker.boot_id)
    except RecorderUnreadableError:
        return None
    try:
        return recorder.counter
    finally:
        recorder.close()


def recorder_path(worker: WorkerRow) -> Path:
    """Return where the flight recorder of an incarnation lies: beside its lock file."""
    return Path(worker.lock_path).with_suffix(RECORDER_SUFFIX)


def _marked(worker: WorkerRow, path: Path) -> int | None:
    if not shows_processes_of(worker.pid_namespace):
        return None  # it lived in another container, whose processes are not shown to this one
    try:
        owner = path.stat().st_uid
    except OSError:
        return None
    found = marked_processes(worker.incarnation, uid=owner, started_ticks=worker.process_started or None)
    return None if found is None else len(found)


def _take_over(shell: Shell, judged: Judged) -> list[Moved]:
    moved: list[Moved] = []
    after_id = 0
    while True:
        with shell.ledger.write() as transaction:
            rows = waiting.find_leased(transaction, judged.worker.id, after_id, shell.limits.batch_max)
            moved += _end_leases(shell, transaction, judged, rows)
            waiting.release_all_probes(transaction, judged.worker.id)
            if len(rows) < shell.limits.batch_max:
                if judged.examined.gone:
                    workers.ended(transaction, judged.worker.id, shell.clock.now().wall_us)
                return moved
            after_id = rows[-1].id


def _end_leases(shell: Shell, transaction: Transaction, judged: Judged, rows: Sequence[Row]) -> list[Moved]:
    now = shell.clock.now()
    moves = []
    with _recorder(judged, now) as phase_of:
        for row in rows:
            case = readable_case(shell, transaction, row, now)
            if case is not None:
                moves.append(Move(row, decide_end(case, _lost_facts(case, judged, phase_of, now))))
    recorded = record(transaction, moves)
    return [(done.row, move.events) for done, move in zip(recorded, moves, strict=True) if done.row is not None]


def _lost_facts(case: Case, judged: Judged, phase_of: Callable[[Row, bool], Phase | None], now: Moment) -> EndFacts:
    """Say what is proved of one attempt: never entered and never sent are proofs, all else is a lost lease."""
    announces = all(terms.announces_sending for terms in case.binding_terms())
    phase = phase_of(case.row, announces)
    if phase is Phase.CLAIMED:
        return EndFacts(end=End.NEVER_ENTERED, fence=FenceBasis.NEVER_ENTERED, interruption="lease_lost")
    if phase is Phase.ENTERED and announces:
        return EndFacts(end=End.NOT_SENT, fence=judged.examined.fence, interruption="lease_lost")
    return EndFacts(end=End.LEASE_LOST, fence=judged.examined.fence, fenced=_fenced_at(judged, now))


def _fenced_at(judged: Judged, now: Moment) -> Moment | None:
    """A reboot fences at the boot; everything else when it was found."""
    if judged.examined.fence is FenceBasis.HOST_REBOOTED:
        return Moment(now.wall_us, 0, now.boot_id)
    return None


class _recorder:
    """Open the recorder of a lost incarnation and revoke slots in it; it answers nothing after a reboot or when damaged."""

    def __init__(self, judged: Judged, now: Moment) -> None:
        self._worker, self._same_boot = judged.worker, judged.worker.boot_id == now.boot_id
        self._open: Recorder | None = None

    def __enter__(self) -> Callable[[Row, bool], Phase | None]:
        if self._same_boot:
            with suppress(RecorderUnreadableError):
                path = recorder_path(self._worker)
                self._open = Recorder.open(path, incarnation=self._worker.incarnation, boot_id=self._worker.boot_id)
        return self._phase_of

    def __exit__(self, *error: object) -> None:
        if self._open is not None:
            self._open.close()

    def _phase_of(self, row: Row, announces_sending: bool) -> Phase | None:
        if self._open is None:
            return None
        slot = self._open.find(row.id, row.attempt)
        if slot is None:
            return None
        return self._open.revoke(slot, row.id, row.attempt, announces_sending=announces_sending)


def _find_fences(shell: Shell, examiner: Examiner, me: int | None) -> list[Moved]:
    """Fence attempts whose incarnation, and all that it started, has ended since."""
    known: dict[int, Judged | None] = {}
    moved: list[Moved] = []
    after_id = 0
    while True:
        with shell.ledger.read() as transaction:
            rows = waiting.find_unfenced(transaction, after_id, shell.limits.batch_max)
            readable = [readable_case(shell, transaction, row, shell.clock.now()) for row in rows]
            cases = [case for case in readable if case is not None]
            owners = {number for case in cases for number in waited_for(case) if number not in known and number != me}
            found = workers.find(transaction, owners)
        known |= {number: examiner.examine(found[number]) if number in found else None for number in owners}
        for case in cases:
            moved += _fence(shell, case, known)
        if len(rows) < shell.limits.batch_max:
            return moved
        after_id = rows[-1].id


def waited_for(case: Case) -> set[int]:
    """Return the incarnations whose end would fence an open attempt."""
    return {attempt.worker for attempt in case.history.open_attempts if attempt.fence is None and attempt.worker is not None}


def _fence(shell: Shell, case: Case, known: Mapping[int, Judged | None]) -> list[Moved]:
    if not _fence_events(case, known):
        return []
    with shell.ledger.write() as transaction:
        now = shell.clock.now()
        row = read_row(transaction, case.row.id)
        events = _fence_events(shell.full_case(transaction, row, now), known)
        done = record(transaction, [Move(row, events)])[0] if events else None
        return [(done.row, events)] if done is not None and done.row is not None else []


def _fence_events(case: Case, known: Mapping[int, Judged | None]) -> tuple[Event, ...]:
    events: tuple[Event, ...] = ()
    for attempt in case.history.open_attempts:
        judged = known.get(attempt.worker) if attempt.worker is not None else None
        if judged is None or judged.examined.fence is None or (attempt.number == case.row.attempt and case.row.status is Status.DISPATCHED):
            continue
        events += decide_fence(case, attempt.number, judged.examined.fence, _fenced_at(judged, case.now) or case.now)
    return events


def clear_away(worker: WorkerRow) -> bool:
    """Remove the files of an incarnation that has ended and owns nothing any more; False where its lock is not proved free."""
    path = Path(worker.lock_path)
    if not remove_lock_file(path, worker.lock_device, worker.lock_inode):
        return False
    for left in (recorder_path(worker), path.with_suffix(BELL)):
        with suppress(OSError):
            left.unlink()
    if worker.cgroup:
        remove_group(Path(worker.cgroup))
    return True
