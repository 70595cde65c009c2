"""Encrypt arguments, metadata and outputs with Fernet (AES-128-CBC and HMAC-SHA256) under keys that have IDs.

Promise: the first key encrypts, every key decrypts what bears its ID, so that old rows stay readable after a rotation. A key is
never shown, logged or stored.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from settled.codec import ENCRYPTED, key_id_of
from settled.core.errors import ConfigurationError, PayloadKeyError
from settled.private import read_private

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

CREDENTIAL: Final = "settled-keys"
KEY_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FILE_BYTES_MAX: Final = 65_536


class EncryptingCodec:
    """Encrypt with the first of some keys; decrypt with the one that a text names."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """`keys` maps IDs to Fernet keys, the one that encrypts first. Raises ConfigurationError for what is no key."""
        fernet = _fernet()
        if not keys:
            raise ConfigurationError("no encryption key is given. Nothing was started. Make one: settled db new-key ID")
        self._keys: dict[str, Fernet] = {}
        for key_id, key in keys.items():
            if not KEY_ID.fullmatch(key_id):
                raise ConfigurationError(f"the key ID {key_id!r} may have letters, digits, '.', '_' and '-' only. Nothing was started.")
            try:
                self._keys[key_id] = fernet(key)
            except (ValueError, TypeError):
                raise ConfigurationError(f"the encryption key {key_id!r} is no Fernet key. Nothing was started.") from None
        self.key_id = next(iter(self._keys))
        self._first, self._prefix = self._keys[self.key_id], f"{ENCRYPTED}{self.key_id}:"

    def encode(self, text: str) -> str:
        """Return `text` encrypted, with the ID of its key before it."""
        return self._prefix + self._first.encrypt(text.encode()).decode()

    def decode(self, stored: str) -> str:
        """Return the text again; one that was stored before there were keys comes back as it is.

        Raises PayloadKeyError, which names the key, where its key is missing or is another one.
        """
        from cryptography.fernet import InvalidToken

        if not stored.startswith(ENCRYPTED):
            return stored
        key_id = key_id_of(stored)
        key = self._keys.get(key_id)
        if key is None:
            raise PayloadKeyError(key_id, tuple(self._keys))
        try:
            return key.decrypt(stored[len(ENCRYPTED) + len(key_id) + 1 :].encode()).decode()
        except (InvalidToken, ValueError):
            raise PayloadKeyError(key_id, tuple(self._keys), wrong=True) from None

    def is_current(self, stored: str) -> bool:
        """Whether a stored text is encrypted with the first key."""
        return stored.startswith(self._prefix)


def new_key() -> str:
    """Return a new random key."""
    return _fernet().generate_key().decode()


def find_keys(file: str | None, text: str | None, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the keys from the file that is named, else from the text, else from the service manager's credentials; None for none.

    Raises ConfigurationError for a file that cannot be read, that others may read, or that holds something else.
    """
    if file is not None:
        return parse_keys(read_private(Path(file), "key file", bytes_max=_FILE_BYTES_MAX), file)
    if text is not None:
        return parse_keys(text.replace(",", "\n"), "SETTLED_ENCRYPTION__KEY_LINES")
    folder = environ.get("CREDENTIALS_DIRECTORY")
    credential = None if folder is None else Path(folder, CREDENTIAL)
    if credential is None or not credential.exists():
        return None
    return parse_keys(read_private(credential, "key file", bytes_max=_FILE_BYTES_MAX), str(credential))


def parse_keys(text: str, where: str) -> dict[str, str]:
    """Parse lines of ID:KEY; blank lines and those that begin with # are left out."""
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key_id, colon, key = line.partition(":")
        if not colon or not key_id.strip() or not key.strip():
            raise ConfigurationError(f"line {number} of {where} is not ID:KEY. Nothing was started.")
        if key_id.strip() in keys:
            raise ConfigurationError(f"{where} has two keys with the ID {key_id.strip()!r}. Nothing was started.")
        keys[key_id.strip()] = key.strip()
    if not keys:
        raise ConfigurationError(f"{where} holds no key. Nothing was started. Make one: settled db new-key ID")
    return keys


def _fernet() -> "type[Fernet]":
    try:
        from cryptography.fernet import Fernet  # an extra, and slow to import
    except ImportError as error:
        raise ConfigurationError("encryption needs an extra. Nothing was started. Run: pip install 'settled[encryption]'") from error
    return Fernet
