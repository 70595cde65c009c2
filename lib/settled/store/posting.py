"""Requests as a text that another process of the same version can store, and what it answers.

Promise: the rows and events are those that their own process would have written. Requests of which any is there already, or is refused,
are left to their own process, which has the arguments, the contract and the words for it.
"""

import json
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from settled.core.canonical import compact_json
from settled.store.requests import Request, Stored, store_requests, stored_by_another
from settled.store.transaction import Transaction

VERSION: Final = f"{zlib.crc32(','.join(Request._fields).encode()):08x}"  # who would read the texts differently has another board


class LeftToItsOwnerError(Exception):
    """Not everything in a text is new."""


class Post(NamedTuple):
    """New requests of one process, and the moment at which they came."""

    requests: Sequence[Request]
    at_us: int

    def text(self) -> bytes:
        """Return what is pinned to the board."""
        return compact_json([self.at_us, *self.requests]).encode()

    def accept(self, answer: bytes) -> list[Stored]:
        """Return the rows that `answer` says were stored, as they are."""
        first, at_us = map(int, answer.split())
        return stored_by_another(self.requests, first, at_us)


def read_post(text: bytes) -> Post:
    """Return what a text says. Raises ValueError or TypeError for one that says nothing."""
    at_us, *values = json.loads(text)
    if type(at_us) is not int:
        raise TypeError(f"a moment must be an int, not {at_us!r}")
    return Post([Request(*one) for one in values], at_us)


def store_posts(transaction: Transaction, texts: Sequence[bytes]) -> list[bytes]:
    """Store what these texts ask for, by few statements; return their answers. Raises where not all is new; the caller rolls back."""
    posts = [read_post(text) for text in texts]
    at_us = max(post.at_us for post in posts)
    stored = store_requests(transaction, [request for post in posts for request in post.requests], at_us)
    if not all(one.created for one in stored):
        raise LeftToItsOwnerError
    firsts = accumulate((len(post.requests) for post in posts[:-1]), initial=0)
    return [b"%d %d" % (stored[first].row.id, at_us) for first in firsts]
