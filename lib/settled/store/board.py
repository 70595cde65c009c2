"""A small file that the processes of a ledger map: who waits for the turn pins what it would store, and who has the turn stores it too.

Promise: it holds nothing of value and decides nothing. A text is taken only by who has the turn, and answered only after the commit that
stored it; one that is not answered was stored by nobody, or its owner finds it in the ledger. What is torn, strange or too long is
passed over, and whoever cannot use the file goes without it.
"""

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from settled.store.places import open_shared, range_lock

PLACES: Final = 16
_PLACE_BYTES: Final = 8192
_WORDS_BYTES: Final = 8 * PLACES
_HEAD_BYTES: Final = 4096  # of each place the number of its last text, then the number of the last text that was answered
_SIZE: Final = _HEAD_BYTES + PLACES * _PLACE_BYTES
_FRAME: Final = struct.Struct("=II")  # length and checksum of the text that follows
_ANSWER_BYTES: Final = 256
TEXT_BYTES_MAX: Final = _PLACE_BYTES - _ANSWER_BYTES - _FRAME.size
_IS_POSSIBLE: Final = hasattr(fcntl, "F_OFD_SETLK") and hasattr(os, "posix_fallocate")  # locks of the open file, not of the process


class Pinned(NamedTuple):
    """One text that waits: where, its number there, and what it says."""

    place: int
    number: int
    text: bytes


class Board:
    """The board of one ledger as one process has it open. Its file is made at the first use and never removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._words: memoryview
        self._fd = -1
        self._place = -1
        self._number = self._length = 0
        self._is_out = not _IS_POSSIBLE

    def has_room_for(self, text: bytes) -> bool:
        """Return whether this process has a place, and `text` is short enough for it."""
        return len(text) <= TEXT_BYTES_MAX and self._has_place()

    def pin(self, text: bytes) -> None:
        """Pin a text at this process' place, for which there is room; one at a time."""
        self._number, self._length = self._number + 1, len(text)
        self._write(self._place, 0, text)
        self._words[self._place] = self._number  # last: now it can be seen

    def is_answered(self) -> bool:
        """Return whether what is pinned was answered."""
        return self._map is not None and self._words[PLACES + self._place] == self._number

    def take_down(self) -> bytes:
        """Take down what is pinned, and clear it away; return the answer, empty where there is none. Nobody takes it from then on."""
        answer = self._read(self._place, TEXT_BYTES_MAX + _FRAME.size, _ANSWER_BYTES - _FRAME.size) if self.is_answered() else b""
        self._words[PLACES + self._place] = self._number
        self._write(self._place, 0, bytes(self._length))
        return answer

    def waiting(self) -> list[Pinned]:
        """Return what others have pinned and nobody has answered. For who has the turn, and inside its transaction."""
        if self._map is None and not self._open():
            return []
        assert self._map is not None
        if self._map[:_WORDS_BYTES] == self._map[_WORDS_BYTES : 2 * _WORDS_BYTES]:
            return []
        found, words = [], self._words
        for place in range(PLACES):
            number = words[place]
            if number != words[PLACES + place] and place != self._place and self._is_lived_in(place):
                text = self._read(place, 0, TEXT_BYTES_MAX)
                if text:
                    found.append(Pinned(place, number, text))
        return found

    def _is_lived_in(self, place: int) -> bool:
        """Whether somebody still waits there: what a killed process left may not be stored when nobody reckons with it any more."""
        return fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, range_lock(fcntl.F_WRLCK, place)) != range_lock(fcntl.F_UNLCK, place)

    def answer_all(self, taken: Sequence[Pinned], answers: Sequence[bytes]) -> None:
        """Answer texts that were taken: after the commit, and before the turn is left."""
        for one, answer in zip(taken, answers, strict=True):
            self._write(one.place, TEXT_BYTES_MAX + _FRAME.size, answer)
            self._words[PLACES + one.place] = one.number

    def close(self) -> None:
        """Close the file, and leave the place to others. A later use opens it again."""
        if self._map is not None:
            self._words.release()
            with suppress(BufferError):  # a fork came while another thread, which is not in the child, looked at it
                self._map.close()
            os.close(self._fd)
        self._map, self._fd, self._place = None, -1, -1

    def __del__(self) -> None:
        self.close()

    def _has_place(self) -> bool:
        if self._place >= 0:
            return True
        if self._map is None and not self._open():
            return False
        for place in range(PLACES):
            with suppress(OSError):  # somebody lives there
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, range_lock(fcntl.F_WRLCK, place))
                self._place = place
                self._number = max(self._words[place], self._words[PLACES + place])
                self._words[PLACES + place] = self._words[place] = self._number
                self._write(place, 0, bytes(TEXT_BYTES_MAX))  # what its last owner was killed over
                return True
        return False

    def _open(self) -> bool:
        if self._is_out:
            return False
        try:
            fd = open_shared(self._path)
            try:
                if os.fstat(fd).st_size < _SIZE:
                    os.posix_fallocate(fd, 0, _SIZE)  # a hole would kill whoever touches it on a full disk
                self._map = mmap.mmap(fd, _SIZE)
            except BaseException:
                os.close(fd)
                raise
        except OSError:
            self._is_out = True  # whoever comes by it waits for its own turn
            return False
        self._fd, self._words = fd, memoryview(self._map)[: 2 * _WORDS_BYTES].cast("Q")
        return True

    def _write(self, place: int, at: int, text: bytes) -> None:
        assert self._map is not None
        begin = _HEAD_BYTES + place * _PLACE_BYTES + at
        self._map[begin : begin + _FRAME.size + len(text)] = _FRAME.pack(len(text), zlib.crc32(text)) + text

    def _read(self, place: int, at: int, bytes_max: int) -> bytes:
        """Return the text that stands there, empty where it is torn."""
        assert self._map is not None
        begin = _HEAD_BYTES + place * _PLACE_BYTES + at
        length, checksum = _FRAME.unpack_from(self._map, begin)
        if length > bytes_max:
            return b""
        text = self._map[begin + _FRAME.size : begin + _FRAME.size + length]
        return text if zlib.crc32(text) == checksum else b""
