"""Be present in a ledger: an incarnation with a held lock, a flight recorder, a row, and a heartbeat.

A worker is one, and so is every process that calls `App.execute`: whoever owns a dispatch can be proved dead.
"""

import threading
from contextlib import suppress
from pathlib import Path

from settled.core.errors import ConfigurationError, LedgerUnavailableError
from settled.execution.cgroup import find_handed
from settled.execution.incarnation import RECORDER_SUFFIX, Incarnation, remove_lock_file, shared_mode
from settled.execution.recorder import Recorder
from settled.shell import Shell
from settled.store import workers
from settled.store.waiting import find_leased, find_repeated, find_unfenced, release_all_probes


class Presence:
    """One registered incarnation. `id` is its row's key, which leases name."""

    def __init__(
        self, shell: Shell, *, kind: workers.Kind, contracts: tuple[str, ...], slots: int, incarnation: Incarnation | None = None
    ) -> None:
        """Register this process start, or the `incarnation` of a process that is only simulated."""
        self._shell = shell
        self.run_directory = ready_run_directory(shell.ledger.run_directory)
        # Only a worker's: what runs in an agent's own process belongs where the agent was put.
        self.incarnation = incarnation or Incarnation.start(self.run_directory, handed=find_handed() if kind == "worker" else None)
        self.recorder = Recorder.create(self._recorder_path(), slots, self.incarnation.id, self.incarnation.boot_id)
        self._free = list(range(slots - 1, -1, -1))
        self._slots_lock = threading.Lock()
        self._given: dict[int, tuple[int, int]] = {}  # slot: row and attempt; by our own word, for others write into the file too
        self._stopped = threading.Event()
        try:
            with shell.ledger.write() as transaction:
                self.id = workers.register(transaction, self._facts(kind), contracts, shell.clock.now().wall_us)
        except BaseException:
            self._remove_files()
            raise

    @property
    def free_slots(self) -> int:
        """How many attempts may be claimed before a recorder slot is free again."""
        with self._slots_lock:
            return len(self._free)

    def take_slot(self, row: int, attempt: int) -> int:
        """Write `claimed` into a free slot, before the claim commits. Raises LedgerUnavailableError where none is to be had."""
        with self._slots_lock:
            if not self._free:
                raise LedgerUnavailableError("no slot of the flight recorder is free. Nothing was dispatched. Try again.")
            slot = self._free[-1]
            if not self.recorder.claim(slot, row, attempt):
                self.recorder.clear(slot)  # of what somebody wrote about an attempt that had left it meanwhile
                if not self.recorder.claim(slot, row, attempt):
                    raise LedgerUnavailableError(f"slot {slot} of the flight recorder is not free. Nothing was dispatched. Try again.")
            self._given[self._free.pop()] = row, attempt
            return slot

    def give_slot(self, slot: int, row: int, attempt: int) -> None:
        """Free a slot whose attempt is recorded, or whose claim did not commit. Does nothing for a slot that was given before."""
        with self._slots_lock:
            if self._given.get(slot) == (row, attempt):
                del self._given[slot]
                self.recorder.clear(slot)
                self._free.append(slot)

    def beat(self) -> None:
        """Show a sign of life."""
        self.recorder.beat()

    def beat_in_background(self, seconds: float) -> None:
        """Beat from a daemon thread, for a caller whose own thread waits for a handler."""

        def beating() -> None:
            while not self._stopped.wait(seconds):
                self.beat()

        threading.Thread(target=beating, name="settled-beat", daemon=True).start()

    def seen(self) -> None:
        """Note in the row that this incarnation lives."""
        with self._shell.ledger.write() as transaction:
            workers.seen(transaction, self.id, self._shell.clock.now().wall_us)

    def close(self, *, code_left: bool = False) -> None:
        """Leave the ledger.

        With `code_left` the lock stays held until this process ends: until then its abandoned code may send. The files stay
        while any attempt waits for a fence or its lease, which others prove by the freed lock; the retention sweep removes
        them later.
        """
        self._stopped.set()
        keep = True
        with suppress(Exception), self._shell.ledger.write() as transaction:
            workers.ended(transaction, self.id, self._shell.clock.now().wall_us)
            release_all_probes(transaction, self.id)  # an answer that never came: a probe only reads, so that another may ask
            keep = bool(find_unfenced(transaction, 0, 1) or find_repeated(transaction) or find_leased(transaction, self.id, 0, 1))
        if code_left:
            return
        if keep:
            self.recorder.close()
            self.incarnation.release()
        else:
            self._remove_files()

    def _recorder_path(self) -> Path:
        return self.incarnation.lock_path.with_suffix(RECORDER_SUFFIX)

    def _facts(self, kind: workers.Kind) -> workers.WorkerFacts:
        born = self.incarnation
        return workers.WorkerFacts(
            incarnation=born.id,
            kind=kind,
            boot_id=born.boot_id,
            pid=born.pid,
            process_started=born.start_ticks or 0,
            pid_namespace=born.pid_namespace or 0,
            lock_path=str(born.lock_path),
            lock_device=born.lock_dev,
            lock_inode=born.lock_inode,
            cgroup=None if born.cgroup is None else str(born.cgroup),
        )

    def _remove_files(self) -> None:
        self.recorder.close()
        self.incarnation.release()
        if remove_lock_file(self.incarnation.lock_path, self.incarnation.lock_dev, self.incarnation.lock_inode):
            with suppress(OSError):
                self._recorder_path().unlink()


def ready_run_directory(path: Path) -> Path:
    """Return the run directory, made anew where it is missing with the mode of its ledger. Raises ConfigurationError."""
    try:
        if not path.is_dir():
            group = shared_mode(path.parent) == 0o660
            path.mkdir(mode=0o700)
            path.chmod(0o2770 if group else 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"the folder {path} for locks and doorbells cannot be made ({error.strerror}). "
            f"Nothing was started. Check the mode of its folder."
        ) from error
    return path
