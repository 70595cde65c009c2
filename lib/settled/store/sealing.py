"""What a write transaction ends with: one seal over all its events, one move of the tally.

The seals are a chain of their own: each head covers the heads before it, so that one row is the head of the audit and
events that were cut off anywhere are missed.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.store.prepared import Statements, named, upsert
from settled.store.schema import operation, seal, tally

GENESIS: Final = hashlib.sha256(b"settled seal 1").digest()
_SEAL: Final = tuple(column.name for column in seal.c)
_TALLY: Final = tuple(column.name for column in tally.c)


class Sealing:
    """The events and the count changes of one transaction. The seal's id is known before the first event is written."""

    __slots__ = ("_at_us", "_counts", "_floor_us", "_hashes", "_last_operation", "_previous", "id")

    def __init__(self) -> None:
        self.id = 0
        self._last_operation = 0
        self._floor_us = self._at_us = 0
        self._previous = GENESIS
        self._hashes: list[bytes] = []
        self._counts: dict[tuple[str, str], int] = {}

    def open(self, cursor: Any, statements: Statements) -> int:
        """Return this transaction's seal id; the first call reads the last seal, and the key of the last operation with it."""
        if not self.id:
            last = statements[_last_seal].run(cursor, {}).fetchone()
            if last is None:
                self.id = 1
            else:
                self.id, self._floor_us, self._previous, self._last_operation = last[0] + 1, last[1], bytes(last[2]), last[3] or 0
        return self.id

    def keys(self, count: int) -> int:
        """Give out the keys of `count` new operations; return the first. Whoever writes to a ledger writes alone, once this is open."""
        first = self._last_operation + 1
        self._last_operation += count
        return first

    def add(self, event_hashes: Iterable[bytes], at_us: int) -> None:
        """Cover events up to `at_us`."""
        self._hashes += event_hashes
        self._at_us = max(self._at_us, at_us)

    def count(self, contract: str, status: str, change: int) -> None:
        """Note that one more (or one fewer) operation of a contract has a status."""
        key = (contract, status)
        self._counts[key] = self._counts.get(key, 0) + change

    def mark(self) -> tuple[int, int, dict[tuple[str, str], int]]:
        """Return where this stands, for `back_to`."""
        return len(self._hashes), self._at_us, dict(self._counts)

    def back_to(self, mark: tuple[int, int, dict[tuple[str, str], int]]) -> None:
        """Forget what was covered and counted since `mark`, where it was rolled back."""
        events, self._at_us, self._counts = mark
        del self._hashes[events:]

    def finish(self, cursor: Any, statements: Statements) -> None:
        """Write the seal and the tally; nothing where nothing was written."""
        if self._hashes:
            head = seal_head(self._previous, self._hashes)
            at_us = max(self._floor_us, self._at_us)  # never below the last seal's: it is the highest wall clock ever stored
            statements[_insert_seal].run_rows(cursor, _SEAL, [(self.id, at_us, len(self._hashes), head)])
        moved = [(contract, status, change) for (contract, status), change in self._counts.items() if change]
        if moved:
            statements[_move_tally].run_rows(cursor, _TALLY, moved)


def seal_head(previous: bytes, hashes: list[bytes]) -> bytes:
    """Return the head of a seal over event hashes, in any order, after `previous`."""
    return hashlib.sha256(previous + b"".join(sorted(hashes))).digest()


def _last_seal() -> sa.ClauseElement:
    last_operation = sa.select(sa.func.max(operation.c.id)).scalar_subquery()
    return sa.select(seal.c.id, seal.c.at_us, seal.c.head, last_operation).order_by(seal.c.id.desc()).limit(sa.literal_column("1"))


def _insert_seal() -> sa.ClauseElement:
    return sa.insert(seal).values({name: named(name) for name in _SEAL})


def _move_tally(dialect: Dialect) -> sa.ClauseElement:
    added = upsert(tally, dialect).values(contract=named("contract"), status=named("status"), count=named("count"))
    return added.on_conflict_do_update(
        index_elements=[tally.c.contract, tally.c.status], set_={"count": tally.c.count + added.excluded.count}
    )
