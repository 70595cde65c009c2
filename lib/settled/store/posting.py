"""New operations as a text that another process of the same version can insert, and what it answers.

Promise: the rows, events and hashes are those that their own process has made; who inserts them gives them keys and a seal. A text of
which anything is there already, or is refused, is left to its own process, which has the contract and the words for it.
"""

import json
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from settled.core.canonical import compact_json
from settled.store.requests import FINGERPRINT_AT, Request, Stored, insert_all_new, without_key
from settled.store.schema import event, operation, payload
from settled.store.transaction import Transaction
from settled.store.writer import HASH_AT

_COLUMNS: Final = ",".join(column.name for table in (operation, event, payload) for column in table.c)
VERSION: Final = f"{zlib.crc32(_COLUMNS.encode()):08x}"  # who would read the texts differently has another board

_FINGERPRINT, _HASH = FINGERPRINT_AT - 1, HASH_AT - 1  # without the key before them


class LeftToItsOwnerError(Exception):
    """Not everything in a text is new."""


class Post:
    """New operations of one process, and the moment at which they came."""

    __slots__ = ("_at_us", "_new")

    def __init__(self, requests: Sequence[Request], at_us: int) -> None:
        self._at_us = at_us
        self._new = [without_key(request, at_us) for request in requests]

    def text(self) -> bytes:
        """Return what is pinned to the board."""
        made = []
        for one in self._new:
            columns, happened = list(one.columns[1:]), list(one.event[1:-1])
            columns[_FINGERPRINT], columns[-1], happened[_HASH] = columns[_FINGERPRINT].hex(), columns[-1].hex(), happened[_HASH].hex()
            made.append((columns, happened, [text[1:] for text in one.texts]))
        return compact_json([self._at_us, *made]).encode()

    def accept(self, answer: bytes) -> list[Stored]:
        """Return the rows as they were stored, the first under the key in `answer`."""
        return [one.stored._replace(row=one.stored.row._replace(id=key)) for key, one in enumerate(self._new, int(answer))]


def store_posts(transaction: Transaction, texts: Sequence[bytes]) -> list[bytes]:
    """Store what these texts ask for, by few statements; return their answers. Raises where not all is new; the caller rolls back."""
    moments: list[int] = []
    counts: list[int] = []
    made: list[Any] = []
    for text in texts:
        at_us, *of_one = json.loads(text)
        if not of_one:
            raise ValueError("there is nothing in it")
        for columns, happened, _ in of_one:
            columns[_FINGERPRINT], columns[-1] = bytes.fromhex(columns[_FINGERPRINT]), bytes.fromhex(columns[-1])
            happened[_HASH] = bytes.fromhex(happened[_HASH])
        moments.append(at_us)
        counts.append(len(of_one))
        made += of_one
    columns, events, bodies = zip(*made, strict=True)
    first = insert_all_new(transaction, columns, events, bodies, max(moments))
    if first is None:
        raise LeftToItsOwnerError
    return [b"%d" % key for key in accumulate(counts[:-1], initial=first)]
