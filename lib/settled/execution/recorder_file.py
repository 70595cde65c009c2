"""Lay out the flight recorder's file: a header that knows its own file, then slots that know when they are torn.

Promise: what was half written, damaged, cut short or copied from elsewhere is recognised and answers nothing.
"""

import errno
import os
import stat
import struct
import zlib
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from settled.core.errors import SettledError


class Phase(IntEnum):
    """How far an attempt has come on this machine."""

    FREE = 0
    CLAIMED = 1
    ENTERED = 2
    SENDING = 3
    RETURNED = 4
    REVOKED = 5


class SlotState(NamedTuple):
    """What a slot says. `entered` stays true in a slot that was revoked after its entry."""

    row: int
    attempt: int
    phase: Phase
    entered: bool


class RecorderUnreadableError(SettledError):
    """A flight recorder file cannot be believed, so that nothing is concluded from it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"the flight recorder {path} is not believed: {problem}. Its attempts stay unknown; nothing was changed.")
        self.path, self.problem = path, problem


_MAGIC: Final = b"settled1"
HEADER: Final = struct.Struct("<8sI4x32s16sQQI")  # magic, slots, incarnation, boot id, device, inode, checksum of the rest
HEADER_BYTES: Final = 256
BEAT_WORD: Final = 128 // 8  # outside the checksum; one aligned 8-byte store, so that a reader never sees half a beat
SLOT: Final = struct.Struct("<QQIII4x")  # row, attempt, phase, entered, checksum: 32 bytes, never across a cache line
BODY: Final = struct.Struct("<QQIII")  # what a slot's checksum covers: the same and the slot's number
PHASES: Final = tuple(Phase)
FREE: Final = SlotState(0, 0, Phase.FREE, False)


def pack_slot(slot: int, state: SlotState, salt: int) -> bytes:
    """Return the slot's bytes. `salt` is the header's checksum: a slot of another file or place is never taken for this one."""
    return SLOT.pack(*state, zlib.crc32(BODY.pack(*state, slot), salt))


def unpack_slot(slot: int, data: bytes, salt: int) -> SlotState | None:
    """Return what the slot's bytes say, or None if their checksum is wrong."""
    row, attempt, phase, entered, checksum = SLOT.unpack(data)
    if phase >= len(PHASES) or checksum != zlib.crc32(BODY.pack(row, attempt, phase, entered, slot), salt):
        return None
    return SlotState(row, attempt, PHASES[phase], entered != 0)


def size(slots: int) -> int:
    """Return how long the file of that many slots is."""
    return HEADER_BYTES + slots * SLOT.size


def offset(slot: int) -> int:
    """Return where the slot begins."""
    return HEADER_BYTES + slot * SLOT.size


def header(fd: int, slots: int, incarnation: str, boot_id: str) -> bytes:
    """Return the header of the file behind `fd`."""
    # Device and inode of the file itself: a copy put back in its place would show phases of the past.
    there = os.fstat(fd)
    facts = (_MAGIC, slots, incarnation.encode("ascii"), boot_id.encode("ascii"), there.st_dev, there.st_ino)
    if len(facts[2]) > 32 or len(facts[3]) > 16:
        raise ValueError(f"incarnation {incarnation!r} or boot id {boot_id!r} is too long for the flight recorder")
    return HEADER.pack(*facts, zlib.crc32(HEADER.pack(*facts, 0)))


def read_header(path: Path, fd: int) -> tuple[int, str, str]:
    """Return slots, incarnation and boot id, or raise RecorderUnreadableError if any byte of it is in doubt."""
    there = os.fstat(fd)
    if not stat.S_ISREG(there.st_mode) or there.st_size < HEADER_BYTES:
        raise RecorderUnreadableError(path, "it is no complete file")
    *facts, checksum = HEADER.unpack(os.pread(fd, HEADER.size, 0))
    magic, slots, incarnation, boot_id, dev, inode = facts
    if magic != _MAGIC or checksum != zlib.crc32(HEADER.pack(*facts, 0)):
        raise RecorderUnreadableError(path, "its header is damaged or of another version")
    if (dev, inode) != (there.st_dev, there.st_ino):
        raise RecorderUnreadableError(path, "it is a copy of the file that was written")
    if there.st_size != size(slots):
        raise RecorderUnreadableError(path, f"it holds {there.st_size} bytes instead of {size(slots)}")
    return slots, incarnation.rstrip(b"\0").decode("ascii"), boot_id.rstrip(b"\0").decode("ascii")


def open_again(fd: int, path: Path) -> int:
    """Return another open file of the one behind `fd`, which shares no lock with it; raises OSError if there is none."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # no /proc here: by its name, if that still is its name
        again = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not os.path.sameopenfile(fd, again):
        os.close(again)
        raise FileNotFoundError(errno.ENOENT, "the flight recorder was replaced", str(path))
    return again
