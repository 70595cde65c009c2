"""Turn the driver's errors into ours, by code and never by name or text: the drivers do not agree on names."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from settled.core.errors import ConfigurationError, LedgerDamagedError, LedgerForbiddenError, LedgerUnavailableError, SettledError

_BUSY: Final = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
_FULL: Final = (13, 10)  # SQLITE_FULL, SQLITE_IOERR
_NO_ENTRY: Final = (14, 23, 8, 3)  # SQLITE_CANTOPEN, SQLITE_AUTH, SQLITE_READONLY, SQLITE_PERM
REFUSED: Final = (8, 23)  # SQLITE_READONLY, SQLITE_AUTH
_NOT_A_DATABASE: Final = 26  # SQLITE_NOTADB
_CORRUPT: Final = 11  # SQLITE_CORRUPT


def primary_code(error: BaseException) -> int | None:
    """Return SQLite's primary result code behind an error, None where there is none."""
    original = getattr(error, "orig", None) or error
    code = getattr(original, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_not_a_database(error: BaseException) -> bool:
    """Return whether the file that was opened is something else than a database."""
    return primary_code(error) == _NOT_A_DATABASE


def is_busy(error: BaseException) -> bool:
    """Return whether somebody else has the database, so that a later try may succeed."""
    return primary_code(error) in _BUSY


def is_full(error: BaseException) -> bool:
    """Return whether the disk took no more."""
    return primary_code(error) in _FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def not_a_database(path: Path) -> ConfigurationError:
    """Return the error for a file that is something else than a database; the driver does not say which file it was."""
    return ConfigurationError(
        f"the file {path} is not a SQLite database. Nothing was changed. Give the path of a ledger, or restore a backup."
    )


def translate(error: Exception, path: Path) -> SettledError | None:
    """Return our error for one of the driver's, None where it is not about the store being usable."""
    primary = primary_code(error)
    if primary is None:
        if isinstance(error, sa.exc.TimeoutError):
            return LedgerUnavailableError(f"the ledger {path} has no free connection. Nothing was recorded. Try again.")
        return None
    text, ledger = str(getattr(error, "orig", None) or error), f"the ledger {path}"
    if primary in _BUSY:
        return LedgerUnavailableError(f"{ledger} is busy ({text}). Nothing was recorded. Try again.")
    if primary in _FULL:
        return LedgerUnavailableError(f"{ledger} cannot be written ({text}). Nothing was recorded. Free disk space, then try again.")
    if primary in _NO_ENTRY and _is_read_only(path):
        return LedgerForbiddenError(
            f"{ledger} cannot be written ({text}): its file system is mounted read-only. Nothing was recorded. Find out why, often a "
            f"failing disk, and mount it for writing again."
        )
    if primary in _NO_ENTRY:
        return LedgerForbiddenError(
            f"{ledger} cannot be used by this user ({text}): {_modes(path)}. Nothing was recorded. Give this user read and write access "
            f"to both, or run settled as their owner."
        )
    if primary in (_NOT_A_DATABASE, _CORRUPT):
        return LedgerDamagedError(str(path), text)
    return None


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _modes(path: Path) -> str:
    """Say whose the file and its folder are and what their modes allow: both must let this user write."""
    return ", ".join(f"its {what} has {_mode(each)}" for what, each in (("file", path), ("folder", path.parent)))


def _mode(path: Path) -> str:
    try:
        there = path.stat()
    except OSError as error:
        return f"a mode that cannot be seen ({error.strerror})"
    try:
        owner = path.owner()
    except (KeyError, OSError):
        owner = f"uid {there.st_uid}"
    return f"mode {stat.S_IMODE(there.st_mode):04o} of owner {owner}"
