"""A small file that the processes of a ledger share: who waits for the turn pins what it would store, and who has the turn stores it too.

Promise: it holds nothing of value and decides nothing. A text is taken only by who has the turn, and answered only after the commit that
stored it; one that is not answered was stored by nobody, or its owner finds it in the ledger. What is torn, strange or too long is
passed over, and whoever cannot use the file goes without it. It is read and written, not mapped: one that is cut short ends nobody.

Beside it lies a pipe for each place that was ever taken. Who waits there is woken by it, once it is answered or the turn is free: that is
a hint too, and looking now and then is the truth.
"""

import fcntl
import os
import select
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from settled.store.places import open_pipe, open_shared, range_lock

PLACES: Final = 16
_PLACE_BYTES: Final = 8192
_HEAD_BYTES: Final = 4096
_WORD: Final = struct.Struct("=Q")
_WORDS: Final = struct.Struct(f"={2 * PLACES}Q")  # of each place the number of its last text, then of the last that was answered
_WORDS_BYTES: Final = PLACES * _WORD.size
_FRAME: Final = struct.Struct("=QII")  # number, length and checksum of the text that follows
_ANSWER_BYTES: Final = 256
TEXT_BYTES_MAX: Final = _PLACE_BYTES - _ANSWER_BYTES - _FRAME.size
_ANSWER_AT: Final = _PLACE_BYTES - _ANSWER_BYTES
_NAP_SECONDS_MAX: Final = 0.005
_DOUBLINGS_MAX: Final = 10
_DEAF_SECONDS_MAX: Final = 0.0003
_RINGS_MAX: Final = 4096
_HAS_LOCKS: Final = hasattr(fcntl, "F_OFD_SETLK")  # locks of the open file, not of the process


def board_path(run_directory: Path, version: str, inode: int) -> Path:
    """Return where the board of a ledger's file lies, for processes that read its texts as `version` says."""
    return run_directory / f"board.{version}.{inode:x}"


def remove_boards_of_others(run_directory: Path, inode: int) -> None:
    """Remove the boards, with their bells, of files that were the ledger before this one. Never raises: they are only in the way."""
    with suppress(OSError):
        for path in list(run_directory.glob("board.*")):
            if path.name.split(".")[2:3] != [f"{inode:x}"]:
                with suppress(OSError):
                    path.unlink()


class Pinned(NamedTuple):
    """One text that waits: in which file, at which place, its number there, and what it says."""

    file: "_File"
    place: int
    number: int
    text: bytes


class Board:
    """The board of one ledger as one process has it open. Its file is made at the first use, and stays until a restore."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: _File | None = None
        self._pin: Pin | None = None
        self._is_out = not _HAS_LOCKS
        self.is_crowded = False  # others waited when we last looked

    def pin(self, text: bytes) -> "Pin | None":
        """Pin a text, one at a time; None where this process has no place, or `text` is too long for it."""
        file = self._open()
        if file is None or len(text) > TEXT_BYTES_MAX or not file.has_place():
            return None
        self._pin = pin = Pin(file, len(text))
        try:
            file.write(file.place, 0, pin.number, text)
            file.write_word(file.place, pin.number)  # last: now it can be seen
        except OSError:
            pin.take_down()
            return None
        return pin

    def give_up(self) -> None:
        """Take down what this process has pinned: an interrupt may have come while that was done."""
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.take_down()

    def waiting(self) -> list[Pinned]:
        """Return what others have pinned and nobody has answered. For who has the turn, and inside its transaction."""
        file = self._open()
        found = [] if file is None else file.waiting()
        if found:
            self.is_crowded = True
        return found

    def ring(self) -> None:
        """Wake who waits: once the turn is left, those first of whom one has it next. For nothing while it `is_crowded` by nobody."""
        file = self._file
        self.is_crowded = self.is_crowded and file is not None and file.ring()

    def close(self) -> None:
        """Leave the place to others, once nobody here is in the midst of something. A later use opens the file again."""
        self._file = self._pin = None

    def _open(self) -> "_File | None":
        file = self._file
        if file is None and not self._is_out:
            try:
                file = self._file = _File(self._path)
            except OSError:
                self._is_out = True  # whoever comes by it waits for its own turn
        return file


class Pin:
    """What this process has pinned."""

    __slots__ = ("_file", "_length", "_naps", "number")

    def __init__(self, file: "_File", length: int) -> None:
        self._file, self._length, self._naps = file, length, 0
        file.number += 1
        self.number = file.number

    def is_answered(self) -> bool:
        """Return whether somebody has answered."""
        return self._file.word(PLACES + self._file.place) == self.number

    def nap(self, seconds: float) -> None:
        """Sleep until this place is rung, at most for `seconds`, and ever longer."""
        self._naps = min(self._naps + 1, _DOUBLINGS_MAX)
        self._file.listen(min(seconds * 2**self._naps, _NAP_SECONDS_MAX))

    def take_down(self) -> bytes | None:
        """Wipe it away; return the answer, None where there is none yet. Nobody takes it from then on."""
        file, place = self._file, self._file.place
        answer = file.read(place, _ANSWER_AT, self.number, _ANSWER_BYTES - _FRAME.size) if self.is_answered() else None
        with suppress(OSError):
            file.write_word(PLACES + place, self.number)
            file.write(place, 0, self.number, bytes(self._length))
        return answer


def answer_all(taken: Sequence[Pinned], answers: Sequence[bytes]) -> None:
    """Answer texts that were taken: after the commit, and before the turn is left. Who cannot be answered looks for itself."""
    for one, answer in zip(taken, answers, strict=True):
        with suppress(OSError):
            one.file.write(one.place, _ANSWER_AT, one.number, answer)
            one.file.write_word(PLACES + one.place, one.number)
            one.file.answered.append(one.place)


class _File:
    """The open file. It is closed once nobody refers to it, so that what is under way when the board is closed ends as it began."""

    def __init__(self, path: Path) -> None:
        self.place = -1
        self.number = 0
        self.answered: list[int] = []  # places that are still to be rung
        self._path = path
        self._bells: dict[int, int] = {}
        self._fd = open_shared(path)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._fd)
        for bell in self._bells.values():
            with suppress(OSError):
                os.close(bell)

    def has_place(self) -> bool:
        """Take a place where this process has none; return whether it has one."""
        if self.place >= 0:
            return True
        for place in range(PLACES):
            with suppress(OSError):  # somebody lives there
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, range_lock(fcntl.F_WRLCK, place))
                self.number = max(self.word(place), self.word(PLACES + place))
                self.write_word(PLACES + place, self.number)
                self.write_word(place, self.number)
                self.write(place, 0, 0, bytes(TEXT_BYTES_MAX))  # what its last owner was killed over
                self.place = place
                return True
        return False

    def listen(self, seconds: float) -> None:
        """Sleep until somebody rings the bell of our place, or so long."""
        bell = self._bell(self.place)
        try:
            if select.select([bell], [], [], seconds)[0]:
                os.read(bell, _RINGS_MAX)
        except (OSError, ValueError):  # there is none, or its number is beyond what select takes
            time.sleep(min(seconds, _DEAF_SECONDS_MAX))

    def ring(self) -> bool:
        """Ring those who wait unanswered, then those who have been answered since; return whether there were any."""
        answered, self.answered = self.answered, []
        places = [*(place for place, _ in self._unanswered()), *answered]
        for place in places:
            with suppress(OSError):  # there is none, or it is full: it has been rung
                os.write(self._bell(place), b"!")
        return bool(places)

    def _bell(self, place: int) -> int:
        """Return the pipe of a place, -1 for none."""
        bell = self._bells.get(place)
        if bell is None:
            opened = -1
            with suppress(OSError):
                opened = open_pipe(self._path.with_name(f"{self._path.name}.{place}"))
            bell = self._bells.setdefault(place, opened)
            if opened not in (bell, -1):  # another thread was faster
                os.close(opened)
        return bell

    def waiting(self) -> list[Pinned]:
        found = []
        try:
            for place, number in self._unanswered():
                text = self.read(place, 0, number, TEXT_BYTES_MAX) if self._is_lived_in(place) else b""
                if text:
                    found.append(Pinned(self, place, number, text))
        except OSError:
            return []
        return found

    def _unanswered(self) -> list[tuple[int, int]]:
        """Return the other places whose last text is not answered, with its number."""
        try:
            words = os.pread(self._fd, _WORDS.size, 0)
        except OSError:
            return []
        if words[:_WORDS_BYTES] == words[_WORDS_BYTES:]:
            return []
        numbers = _WORDS.unpack(words.ljust(_WORDS.size, b"\0"))
        both = enumerate(zip(numbers[:PLACES], numbers[PLACES:], strict=True))
        return [(place, number) for place, (number, answered) in both if number != answered and place != self.place]

    def _is_lived_in(self, place: int) -> bool:
        """Whether somebody still waits there: what a killed process left may not be stored when nobody reckons with it any more."""
        return fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, range_lock(fcntl.F_WRLCK, place)) != range_lock(fcntl.F_UNLCK, place)

    def word(self, at: int) -> int:
        """Return one number of the head; 0 from a file that was cut short, or cannot be read."""
        try:
            found = os.pread(self._fd, _WORD.size, at * _WORD.size)
        except OSError:
            return 0
        return int(_WORD.unpack(found)[0]) if len(found) == _WORD.size else 0

    def write_word(self, at: int, number: int) -> None:
        os.pwrite(self._fd, _WORD.pack(number), at * _WORD.size)

    def write(self, place: int, at: int, number: int, text: bytes) -> None:
        os.pwrite(self._fd, _FRAME.pack(number, len(text), zlib.crc32(text)) + text, _HEAD_BYTES + place * _PLACE_BYTES + at)

    def read(self, place: int, at: int, number: int, bytes_max: int) -> bytes:
        """Return the text of this number that stands there, empty where it is torn or another."""
        begin = _HEAD_BYTES + place * _PLACE_BYTES + at
        try:
            frame = os.pread(self._fd, _FRAME.size, begin)
            if len(frame) < _FRAME.size:
                return b""
            found, length, checksum = _FRAME.unpack(frame)
            if found != number or length > bytes_max:
                return b""
            text = os.pread(self._fd, length, begin + _FRAME.size)
        except OSError:
            return b""
        return text if len(text) == length and zlib.crc32(text) == checksum else b""
