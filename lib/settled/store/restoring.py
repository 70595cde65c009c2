"""Put a backup where a ledger is or was: the old one is set aside with what belongs to it, the new one appears whole.

Promise: the backup is only read; nothing is removed but the boards of the old ledger, which hold nothing of value; between the two renames
there is no ledger, and never a mixture of two.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from settled.core.errors import ConfigurationError, SchemaMismatchError, SettledError
from settled.core.limits import DEFAULTS
from settled.store.backup import DamagedFileError, Progress, check_copy, copy_database, open_alone
from settled.store.board import remove_boards_of_others
from settled.store.creation import put_in_place, remove_built
from settled.store.engine import check_place, check_readable, refuse_affected_wal
from settled.store.failures import is_busy, is_full, not_a_database, translate
from settled.store.holders import open_in
from settled.store.places import make_run_directory
from settled.store.revisions import HEAD
from settled.store.sqlite_library import sqlite_module

_MAGIC: Final = b"SQLite format 3\0"
_BESIDE: Final = ("", "-wal", "-shm", "-journal")


class RestoreRefusedError(SettledError):
    """The ledger may not be replaced now."""

    exit_code = 4


@contextmanager
def restored_copy(backup: Path, path: Path, progress: Progress | None = None) -> Iterator[Path]:
    """Copy a backup beside the ledger's place under another name, check it, and yield that name; it is removed in the end.

    Raises ConfigurationError for what is no backup of this version, DamagedFileError for one that is damaged.
    """
    module = sqlite_module()
    check_place(path)
    if not backup.is_file():
        raise ConfigurationError(f"there is no backup at {backup}. Nothing was changed. Give the path of a file.")
    if path.exists() and os.path.samefile(backup, path):
        raise RestoreRefusedError(f"{backup} is the ledger itself. Nothing was changed. Name a backup.")
    check_readable(backup)
    with backup.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise not_a_database(backup)
    refuse_affected_wal(backup)
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder {path.parent} is not there. Nothing was changed. Make it first.")
    building = path.with_name(f".{path.name}.{secrets.token_hex(8)}.restoring")
    try:
        _make_file(building, path)
        _copy(module, backup, building, progress)
        check_copy(module, building, backup)
        _check_revision(module, building, backup)
        yield building
    finally:
        remove_built(building)


def replace(path: Path, building: Path, stamp: str) -> Path | None:
    """Give the finished file the ledger's name; return where the old ledger is now, None where there was none.

    Raises RestoreRefusedError where somebody has the old one open.
    """
    module = sqlite_module()
    with building.open("rb") as made:
        os.fsync(made.fileno())
    aside = None
    if os.path.lexists(path):
        _close_old(module, path)
        aside = path.with_name(f"{path.name}.replaced-{stamp}")
        if os.path.lexists(aside):
            raise RestoreRefusedError(f"{aside} is there already. Nothing was changed. Wait a second, then try again.")
        _move(path, aside)
        there = aside.stat()
        if users := open_in(there.st_dev, there.st_ino):
            _move(aside, path)
            raise _in_use(path, users)
    if not put_in_place(building, path):
        raise RestoreRefusedError(f"another file came to {path} at the same moment. It was left alone. The old ledger is {aside}.")
    remove_boards_of_others(make_run_directory(path, None), path.stat().st_ino)
    return aside


def _close_old(module: Any, path: Path) -> None:
    """See that nobody has the old ledger open, and let SQLite fold its log into it. One that is damaged is moved with all it has."""
    there = path.stat()
    if users := open_in(there.st_dev, there.st_ino):
        raise _in_use(path, users)
    try:
        driver = module.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=DEFAULTS.busy_timeout_seconds
        )
        try:
            driver.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
            driver.execute("BEGIN EXCLUSIVE")
            driver.execute("COMMIT")
        finally:
            driver.close()  # the last one out writes the log back and removes it
    except module.Error as error:
        if is_busy(error):
            raise _in_use(path, []) from error


def _move(source: Path, target: Path) -> None:
    for suffix in _BESIDE:
        with suppress(FileNotFoundError):
            os.rename(f"{source}{suffix}", f"{target}{suffix}")


def _in_use(path: Path, pids: list[int]) -> RestoreRefusedError:
    by = f" by pid {', '.join(map(str, pids))}" if pids else ""
    return RestoreRefusedError(
        f"the ledger {path} is open{by}: restore is refused. Nothing was changed. Stop every worker and every program that submits, "
        f"then try again."
    )


def _make_file(building: Path, path: Path) -> None:
    """Make it private, or shared as the ledger is that it replaces."""
    try:
        descriptor = os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"the folder {path.parent} cannot take a new file ({error.strerror}). Nothing was changed.") from error
    try:
        if path.exists():
            there = path.stat()
            with suppress(PermissionError):
                os.fchown(descriptor, there.st_uid, there.st_gid)
            os.fchmod(descriptor, there.st_mode & 0o660)
    finally:
        os.close(descriptor)


def _copy(module: Any, backup: Path, building: Path, progress: Progress | None) -> None:
    try:
        with _both(module, backup, building) as (source, target):
            copy_database(source, target, wal=False, progress=progress)
    except module.Error as error:
        if is_full(error):
            raise translate(error, building) or error from error
        raise DamagedFileError(backup, [str(error)]) from error


@contextmanager
def _both(module: Any, backup: Path, building: Path) -> Iterator[tuple[Any, Any]]:
    """A log beside the backup is part of it; without one nothing need be made there, so that it may lie on a read-only disk."""
    has_log = Path(f"{backup}-wal").exists() or Path(f"{backup}-journal").exists()
    read = f"file:{quote(str(backup))}?mode={'rw' if has_log else 'ro&immutable=1'}"
    source = module.connect(read, uri=True, isolation_level=None)
    try:
        target = module.connect(f"file:{quote(str(building))}?mode=rw", uri=True, isolation_level=None)
        try:
            for pragma in ("journal_mode=OFF", "synchronous=OFF"):
                target.execute(f"PRAGMA {pragma}").fetchall()
            yield source, target
        finally:
            target.close()
    finally:
        source.close()


def _check_revision(module: Any, building: Path, backup: Path) -> None:
    driver = open_alone(module, building)
    try:
        known = driver.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'alembic_version')").fetchone()[0]
        found = [row[0] for row in driver.execute("SELECT version_num FROM alembic_version").fetchall()] if known == 2 else []
    finally:
        driver.close()
    if found != [HEAD]:
        raise SchemaMismatchError(", ".join(map(str, found)) or None, HEAD, str(backup))


