"""Bind stored texts to the chain: events name the digests of arguments, metadata and outputs, so that a changed body is found.

A text that is missing was purged by retention, which leaves the digests where they are.
"""

import hashlib
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa

from settled.core.canonical import fingerprint_bytes
from settled.core.errors import SettledError
from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType
from settled.store.prepared import named
from settled.store.reads import ARGUMENTS, METADATA
from settled.store.schema import payload
from settled.store.transaction import Transaction

Decode = Callable[[str], str]
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def body_digest(text: str) -> str:
    """Return SHA-256 of a text, URL-safe base64 without padding."""
    return _shown(hashlib.sha256(text.encode()).digest())


def _shown(digest: bytes) -> str:
    return b2a_base64(digest, newline=False).translate(_URL_SAFE, b"=").decode()


def changed_bodies(transaction: Transaction, row: Row, events: Sequence[Event], decode: Decode) -> Iterator[str]:
    """Yield what is wrong with the stored texts of one operation.

    They are bound as what `decode` makes of them, so that they may be encrypted with another key.
    """
    known = _digests(row, events)
    for part, body in transaction.run(_bodies_of, operation=row.id).fetchall():
        what = _NAMES.get(part, f"output (event {part})")
        if part not in known:
            yield f"a text that no event names is stored as its {what}"
            continue
        try:
            text = decode(body)
        except (SettledError, ValueError) as error:
            yield f"the stored text of its {what} cannot be decoded: {error}"
            continue
        if body_digest(text) != known[part]:
            yield f"the stored text of its {what} is not the one that was recorded"


_NAMES = {ARGUMENTS: "arguments", METADATA: "metadata"}


def _digests(row: Row, events: Sequence[Event]) -> dict[int, str]:
    """Return the digest of each text. Where the submission names none of the arguments, the fingerprint that it binds is theirs."""
    first = events[0].data
    known = {ARGUMENTS: _shown(fingerprint_bytes(row.fingerprint))}
    known |= {part: first[name] for part, name in _NAMES.items() if name in first}
    for sequence, happened in enumerate(events, 1):
        if happened.type is not EventType.SUBMITTED and happened.data.get("out"):
            known[happened.data.get("part", sequence)] = happened.data["out"]
    return known


def _bodies_of() -> sa.ClauseElement:
    return sa.select(payload.c.part, payload.c.body).where(payload.c.operation == named("operation")).order_by(payload.c.part)
