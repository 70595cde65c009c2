"""Make a ledger: private from its birth, whole from its first moment, and once, however many processes ask.

Promise: the file is built under another name and linked into place when it is complete, so that its final name never shows a
half-made ledger and never replaces anything. A process that loses the race finds the winner's ledger.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from settled.core.errors import ConfigurationError, LedgerUnavailableError
from settled.core.limits import DEFAULTS
from settled.store.binding import binding_of
from settled.store.engine import check_place, make_engine, refuse_affected_wal
from settled.store.failures import is_full
from settled.store.places import Access, find_access, make_folders, make_run_directory, own
from settled.store.revisions import apply_migrations, check_revision
from settled.store.schema import meta
from settled.store.sqlite_library import library_version, sqlite_module, wal_is_safe

Journal = Literal["wal", "delete"]
_BESIDE: Final = ("", "-wal", "-shm", "-journal")


class Created(NamedTuple):
    """Where the ledger is, whether this call made it, and the journal mode it has."""

    path: Path
    created: bool
    journal_mode: str


def create_ledger(path: Path, *, group: str | None = None, journal: Journal | None = None, at_us: int, module: Any = None) -> Created:
    """Make the ledger at `path` with its folder and run directory; an existing ledger is left as it is and said so.

    `group` shares it with the members of a group. Raises ConfigurationError where the place, the group or the journal mode
    cannot serve, and where another file is there: nothing is ever overwritten. Raises LedgerUnavailableError on a full disk.
    """
    path = path.absolute()
    check_place(path)
    wanted = choose_journal(journal, module)
    access = find_access(group)
    if os.path.lexists(path):
        return _existing(path, module)
    with _room(path):
        return _make(path, access, wanted, required=journal == "wal", at_us=at_us, module=module)


def _make(path: Path, access: Access, wanted: Journal, *, required: bool, at_us: int, module: Any) -> Created:
    make_folders(path.parent, access)
    building = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        _make_empty(building, access)
        mode = _build(building, path, wanted, required=required, at_us=at_us, module=module)
        make_run_directory(path, access)
        if not put_in_place(building, path):
            return _existing(path, module)
    finally:
        remove_built(building)
    return Created(path, True, mode)


@contextlib.contextmanager
def _room(path: Path) -> Iterator[None]:
    """Say that the disk is full where that is why no ledger can be made, whoever met it first."""
    try:
        yield
    except Exception as error:
        if not (is_full(error) or (error.__cause__ is not None and is_full(error.__cause__))):
            raise
        raise LedgerUnavailableError(
            f"the disk of {path.parent} takes no more, and no ledger was made. Free disk space, then run settled init again."
        ) from error


def choose_journal(asked: Journal | None, module: Any = None) -> Journal:
    """Return the mode for a new ledger. Raises ConfigurationError for WAL where this process's SQLite has the WAL-reset bug."""
    version = library_version(module or sqlite_module())
    safe = wal_is_safe(version)
    if asked == "wal" and not safe:
        shown = ".".join(map(str, version))
        raise ConfigurationError(
            f"SQLite {shown} can corrupt a ledger in WAL mode. Nothing was made. Use --journal delete, or: pip install pysqlite3"
        )
    return asked or ("wal" if safe else "delete")


def _make_empty(path: Path, access: Access) -> None:
    """Make the file with its final mode and group before SQLite opens it: -wal and -shm take both from it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the folder {path.parent} cannot take a new file ({error.strerror}). Nothing was made. Check its owner and mode."
        ) from error
    try:
        own(descriptor, path, access, access.file_mode)
    finally:
        os.close(descriptor)


def _build(building: Path, path: Path, wanted: Journal, *, required: bool, at_us: int, module: Any) -> str:
    """Write the schema and `meta` into the file; return the journal mode that the file system really gave."""
    engine = make_engine(building, DEFAULTS.busy_timeout_seconds, module)
    try:
        with engine.connect() as connection:
            mode = ask_for_journal(connection.connection.driver_connection, wanted)
            if mode != wanted and required:
                raise ConfigurationError(
                    f"the file system of {path} does not carry a WAL (it answers {mode!r}). Nothing was made. Use --journal delete."
                )
        with engine.begin() as connection:
            apply_migrations(connection, None, path)
            facts = {"ledger_id": secrets.token_hex(16), "journal_mode": mode, "created_us": str(at_us), **binding_of(building)}
            connection.execute(sa.insert(meta), [{"key": key, "value": value} for key, value in facts.items()])
    finally:
        engine.dispose()
    return mode


def ask_for_journal(driver: Any, wanted: Journal) -> str:
    """Ask for a journal mode outside a transaction; return what SQLite answers, which may be another."""
    return str(driver.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0]).lower()


def put_in_place(building: Path, path: Path) -> bool:
    """Give the finished file its name; return False where that name is taken."""
    try:
        os.link(building, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"the file system of {path} makes no hard links ({error.strerror}), so that a ledger cannot appear there whole. "
            f"Nothing was made. Choose another folder."
        ) from error
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def remove_built(building: Path) -> None:
    """Remove what was built under another name, and what SQLite made beside it."""
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{building}{suffix}")


def _existing(path: Path, module: Any) -> Created:
    """Return the ledger that is there. Read through SQLite only: closing a plain descriptor would drop this process's locks."""
    if not path.exists():
        raise ConfigurationError(f"{path} is a symbolic link to nothing. Nothing was made. Remove it, or give the path it should lead to.")
    if not path.is_file():
        raise ConfigurationError(f"{path} is there and is no regular file. Nothing was made. Choose another path.")
    if not os.access(path, os.R_OK | os.W_OK):
        raise ConfigurationError(f"{path} is there and this user may not use it. Nothing was changed. Check its mode and group.")
    if path.stat().st_size == 0:
        raise ConfigurationError(f"{path} is there and empty: no ledger. Nothing was changed. Remove it, then run settled init again.")
    refuse_affected_wal(path, module)
    engine = make_engine(path, DEFAULTS.busy_timeout_seconds, module)
    try:
        facts = check_revision(engine, path)
    finally:
        engine.dispose()
    make_run_directory(path, None)
    _remove_second_names(path)
    return Created(path, False, facts["journal_mode"])


def _remove_second_names(path: Path) -> None:
    """Remove what a crash between link and unlink left: another name of the very same file."""
    inode = path.stat().st_ino
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(f".{path.name}.") and entry.name.endswith(".new"):
                with contextlib.suppress(FileNotFoundError):  # its maker was faster
                    if entry.stat(follow_symlinks=False).st_ino == inode:
                        os.unlink(entry.path)
