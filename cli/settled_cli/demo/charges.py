"""Keep the charges that the shop committed, one durable line each.

A charge is committed when its line, newline included, is on the disk. So the truth can be counted from the file alone,
also after the shop was killed: an unfinished last line was never committed and is cut off when the file is opened again.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self


class Order(NamedTuple):
    """What a caller wants to be charged."""

    reference: str
    amount_cents: int
    currency: str


class Charge(NamedTuple):
    """One committed charge. `key` is the caller's idempotency key, if it sent one."""

    charge_id: str
    reference: str
    amount_cents: int
    currency: str
    key: str | None

    @property
    def order(self) -> Order:
        return Order(self.reference, self.amount_cents, self.currency)


class ChargeFileError(Exception):
    """The file cannot serve as the shop's ledger."""


class ChargeFile:
    """An append-only file of charges with one owner. Not thread-safe: the shop calls it under its lock."""

    def __init__(self, descriptor: int, path: Path, charges: list[Charge]) -> None:
        self._descriptor, self._path, self.charges = descriptor, path, charges

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the file and read what was committed. Raises ChargeFileError if it is in use or not such a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            charges = _read(descriptor, path)
            _sync_folder(path.parent)
        except BlockingIOError:
            os.close(descriptor)
            raise ChargeFileError(f"another shop uses {path}. Nothing was changed. Stop it, or choose another file.") from None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, path, charges)

    def append(self, order: Order, key: str | None) -> Charge:
        """Commit one charge; it is on the disk when this returns. On OSError nothing was committed."""
        charge = Charge(f"ch_{len(self.charges) + 1:06d}", *order, key)
        line = json.dumps(charge._asdict(), ensure_ascii=False).encode() + b"\n"
        size = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, line) != len(line):
                raise OSError(f"{self._path} took only a part of a line")
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, size)  # a half line would swallow the next charge
            raise
        self.charges.append(charge)
        return charge


def _read(descriptor: int, path: Path) -> list[Charge]:
    content = b""
    while block := os.read(descriptor, 1 << 20):
        content += block
    whole, _, unfinished = content.rpartition(b"\n")
    if unfinished:
        os.ftruncate(descriptor, len(content) - len(unfinished))
        os.fsync(descriptor)
    lines = whole.splitlines() if whole else []
    return [_charge(line, number, path) for number, line in enumerate(lines, start=1)]


def _charge(line: bytes, number: int, path: Path) -> Charge:
    try:
        fields: Mapping[str, Any] = json.loads(line)
        return Charge(**fields)
    except (ValueError, TypeError) as error:
        raise ChargeFileError(f"line {number} of {path} is not a charge ({error}). Nothing was changed. Choose another file.") from None


def _sync_folder(folder: Path) -> None:
    # Without this a power cut may forget the name of a file whose content is safe.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
