"""Keep the phase of every attempt in flight where the death of its worker and runner cannot take it away: the flight recorder.

Promise: entry is contested, not observed. Whoever runs the code and whoever wants to believe that it never ran take the same
lock and write; one of them finds that the other was first. A slot that is torn, locked by a stopped process or of another
attempt answers nothing, and nothing is not believed. It survives SIGKILL, not a power cut: a file of another boot is refused.
"""

import errno
import fcntl
import mmap
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from settled.clock import boot_us, monotonic_us
from settled.execution.incarnation import shared_mode
from settled.execution.recorder_file import (
    BEAT_WORD,
    FREE,
    HEADER,
    HEADER_BYTES,
    SLOT,
    Phase,
    RecorderUnreadableError,
    SlotState,
    header,
    offset,
    open_again,
    pack_slot,
    read_header,
    size,
    unpack_slot,
)
from settled.store.places import range_lock

__all__ = ["LOCK_WAIT_US", "Phase", "Recorder", "RecorderUnreadableError", "SlotState"]


LOCK_WAIT_US: Final = 200_000
_PAUSE_US: Final = 100

Moves = Mapping[Phase, Phase]
SEND: Final[Moves] = {Phase.ENTERED: Phase.SENDING, Phase.SENDING: Phase.SENDING}
RETURN: Final[Moves] = {Phase.ENTERED: Phase.RETURNED, Phase.SENDING: Phase.RETURNED}
REVOKE: Final[Moves] = {Phase.CLAIMED: Phase.REVOKED}
REVOKE_UNSENT: Final[Moves] = {Phase.CLAIMED: Phase.REVOKED, Phase.ENTERED: Phase.REVOKED}


class Recorder:
    """The recorder file of one incarnation. Usable from any thread, and from any process that opened it itself."""

    def __init__(self, path: Path, fd: int, slots: int, incarnation: str, boot_id: str) -> None:
        """Use `create` or `open`."""
        self.path, self.slots, self.incarnation, self.boot_id = path, slots, incarnation, boot_id
        self._map = mmap.mmap(fd, size(slots))
        # Locks go through an open file of their own: a forked child keeps the mapping, and with it would keep a dead parent's locks.
        self._fd = open_again(fd, path)
        self._words = memoryview(self._map).cast("Q")
        self._salt = zlib.crc32(self._map[: HEADER.size])
        self._mine = [threading.Lock() for _ in range(slots)]  # a lock of the file does not keep our own threads apart
        self._free = [pack_slot(slot, FREE, self._salt) for slot in range(slots)]
        self._take = [range_lock(fcntl.F_WRLCK, offset(slot)) for slot in range(slots)]
        self._give = [range_lock(fcntl.F_UNLCK, offset(slot)) for slot in range(slots)]
        _open_recorders.add(self)

    @classmethod
    def create(cls, path: Path, slots: int, incarnation: str, boot_id: str) -> Self:
        """Make the file with `slots` free slots, readable and writable for the ledger's group where its folder is a group's."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(fd, shared_mode(path.parent))
            # Written, not truncated to size: a hole in the file would kill the worker by SIGBUS once the disk is full.
            if os.pwrite(fd, bytes(size(slots)), 0) != size(slots):
                raise OSError(errno.ENOSPC, "no room for the flight recorder", str(path))
            os.pwrite(fd, header(fd, slots, incarnation, boot_id), 0)
            made = cls(path, fd, slots, incarnation, boot_id)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        for slot in range(slots):
            made.clear(slot)
        return made

    @classmethod
    def open(cls, path: Path, *, incarnation: str | None = None, boot_id: str | None = None) -> Self:
        """Open an existing file; raises RecorderUnreadableError if it is damaged, a copy, or not of this incarnation or boot."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise RecorderUnreadableError(path, str(error.strerror)) from error
        try:
            slots, its_incarnation, its_boot_id = read_header(path, fd)
            if incarnation not in (None, its_incarnation):
                raise RecorderUnreadableError(path, f"it belongs to incarnation {its_incarnation}, not {incarnation}")
            if boot_id not in (None, its_boot_id):
                raise RecorderUnreadableError(path, f"it was written under boot {its_boot_id}, not {boot_id}")
            return cls(path, fd, slots, its_incarnation, its_boot_id)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the file; it stays where it is."""
        _open_recorders.discard(self)
        if self._fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    # Written by the owner alone, who gives slots out, and without their locks: each of the others names the attempt that he looks
    # for, and finds it not yet, not any more, or torn, which answers nothing.

    def claim(self, slot: int, row: int, attempt: int) -> bool:
        """Reserve a free slot for an attempt, before its claim commits; False if the slot is not free."""
        if not 0 <= slot < self.slots:
            return False
        start = offset(slot)
        if self._map[start : start + SLOT.size] != self._free[slot]:
            return False
        self._write(slot, SlotState(row, attempt, Phase.CLAIMED, False))
        return True

    def clear(self, slot: int) -> None:
        """Free a slot whose attempt is recorded, or whose claim did not commit."""
        start = offset(slot)
        self._map[start : start + SLOT.size] = self._free[slot]

    def beat(self) -> None:
        """Count one sign of life. Only the owner calls this."""
        self._words[BEAT_WORD] = (self._words[BEAT_WORD] + 1) & 0xFFFF_FFFF_FFFF_FFFF

    # Contested: each takes the slot's lock, looks, and moves only what the table allows.

    def enter(self, slot: int, row: int, attempt: int, enter_by_us: int | None, now_us: Callable[[], int] = boot_us) -> bool:
        """Win the right to call the code; False if it was revoked, is not this attempt's, or `enter_by_us` (boot time) has passed.

        `now_us` is asked under the lock: waiting for the lock takes time.
        """
        if not self._lock(slot):
            return False
        try:
            start = offset(slot)
            claimed = pack_slot(slot, SlotState(row, attempt, Phase.CLAIMED, False), self._salt)
            if self._map[start : start + SLOT.size] != claimed or (enter_by_us is not None and now_us() > enter_by_us):
                return False
            self._write(slot, SlotState(row, attempt, Phase.ENTERED, True))
            return True
        finally:
            self._unlock(slot)

    def sending(self, slot: int, row: int, attempt: int) -> bool:
        """Win the right to send; False if the attempt was revoked or this slot is no longer its own."""
        seen = self._move(slot, row, attempt, SEND)
        return seen is not None and seen.phase in SEND

    def returned(self, slot: int, row: int, attempt: int, *, announces_sending: bool = True) -> None:
        """Note that the code has ended. Changes nothing in a slot that was revoked or given to another attempt.

        Nobody takes the entry back from an attempt that does not announce its sending: that one needs no lock to say so.
        """
        if announces_sending:
            self._move(slot, row, attempt, RETURN)
        elif 0 <= slot < self.slots and SLOT.unpack_from(self._map, offset(slot))[:3] == (row, attempt, Phase.ENTERED):
            self._write(slot, SlotState(row, attempt, Phase.RETURNED, True))

    def revoke(self, slot: int, row: int, attempt: int, *, announces_sending: bool = False) -> Phase | None:
        """Take the right to enter away, and with `announces_sending` the right to send; return the phase this was decided on.

        CLAIMED: it never entered and now cannot. ENTERED with `announces_sending`: it never sent and now cannot. Asking again
        gives the same answer. Any other phase is what the attempt was first in. None: torn, another attempt, lock not got.
        """
        seen = self._move(slot, row, attempt, REVOKE_UNSENT if announces_sending else REVOKE)
        if seen is None or seen.phase is not Phase.REVOKED:
            return None if seen is None else seen.phase
        return Phase.ENTERED if seen.entered else Phase.CLAIMED

    # Read by anyone. What is read without the lock may be old by the time it is used: decide by `revoke`.

    def read(self, slot: int) -> SlotState | None:
        """Return what the slot says, or None if its checksum is wrong."""
        if not 0 <= slot < self.slots:
            return None
        start = offset(slot)
        return unpack_slot(slot, self._map[start : start + SLOT.size], self._salt)

    def find(self, row: int, attempt: int) -> int | None:
        """Return the slot of this attempt, or None if no readable slot is its own."""
        for slot, words in enumerate(SLOT.iter_unpack(self._map[HEADER_BYTES:])):
            if words[:2] == (row, attempt):  # first without its checksum, which takes longer than all the rest
                seen = self.read(slot)
                if seen is not None and seen.phase is not Phase.FREE:
                    return slot
        return None

    def highest_attempt(self, row: int) -> int | None:
        """Return the highest attempt of this row that any slot knows, or None."""
        states = (self.read(slot) for slot in range(self.slots))
        return max((seen.attempt for seen in states if seen and seen.row == row and seen.phase is not Phase.FREE), default=None)

    @property
    def counter(self) -> int:
        """The owner's heartbeats so far."""
        return self._words[BEAT_WORD]

    def _move(self, slot: int, row: int, attempt: int, moves: Moves) -> SlotState | None:
        """Move the slot along `moves` under its lock and return what it was before; None where nothing may be concluded."""
        if not self._lock(slot):
            return None
        try:
            seen = self.read(slot)
            if seen is None or seen[:2] != (row, attempt):
                return None
            to = moves.get(seen.phase)
            if to is not None:
                self._write(slot, SlotState(seen.row, seen.attempt, to, seen.entered))
            return seen
        finally:
            self._unlock(slot)

    def _write(self, slot: int, state: SlotState) -> None:
        start = offset(slot)
        self._map[start : start + SLOT.size] = pack_slot(slot, state, self._salt)

    def _lock(self, slot: int) -> bool:
        """Take the slot's lock from our threads and from other processes, or return False after a bounded wait."""
        if not 0 <= slot < self.slots or not self._mine[slot].acquire(timeout=LOCK_WAIT_US / 1e6):
            return False
        until_us: int | None = None
        while True:
            try:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, self._take[slot])
                return True
            except (BlockingIOError, PermissionError):
                until_us = until_us or monotonic_us() + LOCK_WAIT_US
            except (OSError, ValueError):
                until_us = 0  # no such lock here, or closed: nothing can be contested
            if monotonic_us() >= until_us:
                self._mine[slot].release()
                return False
            time.sleep(_PAUSE_US / 1e6)

    def _unlock(self, slot: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, self._give[slot])
        self._mine[slot].release()

    def _renew_after_fork(self) -> None:
        """Open the file anew in a forked child: with the parent's descriptor it would share the parent's locks."""
        inherited, self._fd = self._fd, -1
        self._mine = [threading.Lock() for _ in range(self.slots)]
        try:
            self._fd = open_again(inherited, self.path)
        except OSError:
            pass  # without a descriptor no lock is got, and then nothing enters and nothing is believed
        finally:
            os.close(inherited)


_open_recorders: "weakref.WeakSet[Recorder]" = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_open_recorders):
        recorder._renew_after_fork()


os.register_at_fork(after_in_child=_after_fork)
