"""How arguments, metadata and outputs are written into the ledger, and read again: as they are, or encrypted.

Promise: a text that was encrypted is never taken for what it is not: without its key it is an error that names the key.
"""

from typing import Final, Protocol

from settled.core.errors import PayloadKeyError

ENCRYPTED: Final = "enc1:"  # no JSON text begins so


class Codec(Protocol):
    """How stored texts are written, and read again. Both may be called inside a transaction: they must be quick and wait for nothing."""

    def encode(self, text: str) -> str:
        """Return what is stored for a canonical text."""

    def decode(self, stored: str) -> str:
        """Return the canonical text again."""


class PlainCodec:
    """Store texts as they are."""

    def encode(self, text: str) -> str:
        """Return `text`."""
        return text

    def decode(self, stored: str) -> str:
        """Return `stored`. Raises PayloadKeyError for what was encrypted: no key is known here."""
        if stored[:1] == "e" and stored.startswith(ENCRYPTED):
            raise PayloadKeyError(key_id_of(stored), ())
        return stored


def key_id_of(stored: str) -> str:
    """Return the ID of the key of an encrypted text, "" for one that is not encrypted."""
    return stored[len(ENCRYPTED) :].partition(":")[0] if stored.startswith(ENCRYPTED) else ""
