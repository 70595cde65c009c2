"""Copy a ledger that is in use into one file, whole and checked, or not at all.

Promise: the copy holds everything that was committed before it began; it is private, is checked before it gets its name, and
never takes the name of a file that is there. Writers go on meanwhile.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from settled.core.errors import LedgerUnavailableError, SettledError
from settled.core.text import one_line
from settled.store.creation import put_in_place, remove_built
from settled.store.failures import is_full, is_not_a_database, not_a_database, translate
from settled.store.ledger import Ledger

_PAGES: Final = 1024  # of one step: 4 MiB, between which a writer without a WAL gets its turn
_RESTARTS_MAX: Final = 3
_PROBLEMS_MAX: Final = 5
_PROBLEM_CHARACTERS: Final = 200
Progress = Callable[[int, int], None]


class BackupRefusedError(SettledError):
    """The copy may not be made there: nothing is ever overwritten."""

    exit_code = 4


class DamagedFileError(SettledError):
    """A database file is not sound."""

    exit_code = 1

    def __init__(self, path: Path, problems: list[str]) -> None:
        said = "; ".join(one_line(problem, _PROBLEM_CHARACTERS) for problem in problems[:_PROBLEMS_MAX])
        super().__init__(f"the file {path} is damaged: {said}. It was not used, and nothing was changed. Take another copy.")
        self.path, self.problems = path, tuple(problems)


class Backup(NamedTuple):
    """What was made: where, its size, and the last seal that it holds."""

    path: Path
    size_bytes: int
    seal: int
    head: str


class _Restarted(Exception):
    """Writers keep changing what is copied in steps."""


def back_up(ledger: Ledger, target: Path, *, stamp: str, progress: Progress | None = None) -> Backup:
    """Copy the ledger to the file `target`, or into the folder `target` under a name with `stamp`.

    `progress` is told of pages done and pages in all. Raises BackupRefusedError where the file is there,
    LedgerUnavailableError where there is no room, DamagedFileError where the copy is not sound: nothing is left then.
    """
    target = target.absolute()
    if target.is_dir():
        target = target / f"{ledger.path.stem}-{stamp}.db"
    _may_be_made(target, ledger.path)
    building = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with _room(target):
            os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            _copy(ledger, building, progress)
            seal, head = check_copy(ledger.module(), building, ledger.path)
            with building.open("rb") as made:
                os.fsync(made.fileno())
            size = building.stat().st_size
            if not put_in_place(building, target):
                raise _taken(target)
    finally:
        remove_built(building)
    return Backup(target, size, seal, head)


def open_alone(module: Any, path: Path) -> Any:
    """Open a file that nobody else has or will have, only to read it. Nothing is made beside it."""
    return module.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True, isolation_level=None)


def check_copy(module: Any, path: Path, shown: Path) -> tuple[int, str]:
    """Return the last seal of a file that nobody has open, and its head in hex.

    Raises DamagedFileError, which names `shown`, where the file is not sound.
    """
    try:
        driver = open_alone(module, path)
        try:
            found = [row[0] for row in driver.execute(f"PRAGMA integrity_check({_PROBLEMS_MAX})").fetchall()]
            found = [] if found == ["ok"] else found
            found += [f"a row of {row[0]} refers to nothing in {row[2]}" for row in driver.execute("PRAGMA foreign_key_check").fetchall()]
            last = driver.execute("SELECT id, hex(head) FROM seal ORDER BY id DESC LIMIT 1").fetchone()
        finally:
            driver.close()
    except module.Error as error:
        if is_not_a_database(error):
            raise not_a_database(shown) from error
        found, last = [str(error)], None
    if found:
        raise DamagedFileError(shown, found)
    return (0, "") if last is None else (int(last[0]), str(last[1]).lower())


def copy_database(source: Any, target: Any, *, wal: bool, progress: Progress | None) -> None:
    """Copy all pages through SQLite itself.

    With a WAL one reader's snapshot is copied in steps, which no writer notices. Without one a writer between two steps starts
    the copy anew, and a writer waits while pages are read: after some restarts it is read in one step.
    """

    def told(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    if wal:
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM sqlite_master").fetchone()  # from here on it reads what is there now
        try:
            source.backup(target, pages=_PAGES, progress=told)
        finally:
            source.execute("ROLLBACK")
        return
    try:
        source.backup(target, pages=_PAGES, progress=_impatient(told))
    except _Restarted:
        source.backup(target, pages=-1, progress=told)


def _impatient(told: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
    left: list[int] = []
    restarts = 0

    def watch(status: int, remaining: int, total: int) -> None:
        nonlocal restarts
        restarts += bool(left) and remaining > left[-1]
        left[:] = [remaining]
        told(status, remaining, total)
        if restarts > _RESTARTS_MAX:
            raise _Restarted

    return watch


def _copy(ledger: Ledger, building: Path, progress: Progress | None) -> None:
    module = ledger.module()
    pooled = ledger.engine().raw_connection()
    try:
        target = module.connect(f"file:{quote(str(building))}?mode=rw", uri=True, isolation_level=None)
        try:
            for pragma in ("journal_mode=OFF", "synchronous=OFF"):  # until it has its name, a crash only leaves a part behind
                target.execute(f"PRAGMA {pragma}").fetchall()
            copy_database(pooled.driver_connection, target, wal=ledger.meta["journal_mode"] == "wal", progress=progress)
        finally:
            target.close()
    except module.Error as error:
        raise translate(error, ledger.path) or error from error
    finally:
        pooled.close()


def _may_be_made(target: Path, source: Path) -> None:
    if os.path.lexists(target):
        raise _taken(target)
    if not target.parent.is_dir():
        raise BackupRefusedError(f"the folder {target.parent} is not there. Nothing was written. Make it, or name another.")
    free, needed = disk_usage(target.parent).free, sum(_size(Path(f"{source}{suffix}")) for suffix in ("", "-wal"))
    if free < needed:
        raise _no_room(target, f"{free} bytes are free, up to {needed} are needed")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _taken(target: Path) -> BackupRefusedError:
    return BackupRefusedError(f"{target} is there already. It was left as it is, and nothing was written. Name another file, or a folder.")


def _no_room(target: Path, why: str) -> LedgerUnavailableError:
    return LedgerUnavailableError(
        f"the disk of {target.parent} has no room for a copy ({why}). Nothing was left of it. Free space, or name another disk."
    )


@contextlib.contextmanager
def _room(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise _no_room(target, error.strerror or "full") from error
        raise BackupRefusedError(
            f"{target} cannot be written ({error.strerror}). Nothing was left of it. Name another file or folder."
        ) from error
    except LedgerUnavailableError as error:
        if error.__cause__ is not None and is_full(error.__cause__):
            raise _no_room(target, str(error.__cause__)) from error
        raise
