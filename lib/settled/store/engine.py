"""Make the engine of one ledger: the right driver, safe settings, and never a new file.

What may write begins with BEGIN IMMEDIATE, so that a read that leads to a write never fails with a stale snapshot;
what only reads begins with BEGIN.
"""

import ctypes
import os
import re
import stat
import threading
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.store.sqlite_library import library_version, sqlite_module, wal_is_safe

# What stands between the user and the last @, and parameters that are named like secrets; rather too much than too little.
_PASSWORD: Final = re.compile(r"(://[^:/@]*:).*(?=@)", re.DOTALL)
_SECRETS: Final = re.compile(r"([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)
_MOUNTS: Final = Path("/proc/self/mounts")
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs", "fuse.glusterfs", "lustre", "beegfs"}
)


def ledger_path(database: str) -> Path:
    """Return the absolute path of a database given as a path or a `sqlite:` URL.

    Raises ConfigurationError for a memory database, an empty path, and databases that this version cannot open.
    """
    text, shown = database.strip(), repr(_PASSWORD.sub(r"\1***", _SECRETS.sub(r"\1***", database)))
    if text.startswith("sqlite:"):
        try:
            text = sa.make_url(text).database or ""
        except (sa.exc.ArgumentError, ValueError):
            raise ConfigurationError(f"the database {shown} is no URL. Nothing was opened. Write sqlite:///PATH, or the path.") from None
    elif "://" in text:
        raise ConfigurationError(f"the database {shown} is not SQLite, which is what this version works on. Nothing was opened.")
    if text.startswith("file:") or "mode=memory" in text:
        raise ConfigurationError(f"the database {shown} is a SQLite URI. Give a plain path. Nothing was opened.")
    if text in ("", ":memory:"):
        raise ConfigurationError(f"the database {shown} would live in memory and be lost. Give the path of a file.")
    return Path(text).expanduser().absolute()


class _Compiler(SQLiteCompiler):
    """Let a statement name its index: without statistics SQLite takes an equality on any index for better than a partial one.

    And keep it prepared: SQLite reads the value of a bare parameter after LIMIT while it plans, and plans anew, five times as
    long as a claim takes, whenever that is bound again. An expression it evaluates.
    """

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        return text

    def limit_clause(self, select: Any, **more: Any) -> str:
        limit, offset = select._limit_clause, select._offset_clause
        if limit is None or offset is not None:
            return str(super().limit_clause(select, **more))  # type: ignore[no-untyped-call]
        return f"\n LIMIT 0 + {self.process(limit, **more)}"


def make_engine(path: Path, busy_timeout_seconds: float, module: ModuleType | None = None) -> sa.Engine:
    """Return an engine for an existing ledger file; connecting to a missing one fails and creates nothing."""
    module = module or sqlite_module()
    url = sa.URL.create("sqlite", database=f"file:{quote(str(path))}?mode=rw", query={"uri": "true"})
    engine = sa.create_engine(url, module=module, pool_size=8, max_overflow=64, pool_timeout=busy_timeout_seconds)
    engine.dialect.statement_compiler = _Compiler
    busy_ms = int(busy_timeout_seconds * 1000)
    opened = _opened[engine] = []

    @sa.event.listens_for(engine, "close")
    def forget(connection: Any, record: object) -> None:
        opened[:] = [one for one in opened if one is not connection]

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, record: object) -> None:
        opened.append(connection)
        connection.isolation_level = None  # the driver emits no BEGIN of its own
        cursor = connection.cursor()
        # synchronous=FULL: a dispatch mark lost in a power cut would be a second effect
        # wal_autocheckpoint: every commit rewrites the same few pages, and a later checkpoint copies each of them once
        # journal_size_limit: what one long reader made the log grow to is given back once it starts anew
        wal = (f"wal_autocheckpoint={DEFAULTS.wal_pages}", f"journal_size_limit={DEFAULTS.wal_bytes_max}")
        for pragma in (f"busy_timeout={busy_ms}", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY", *wal):
            cursor.execute(f"PRAGMA {pragma}").fetchall()
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("settled_write", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


_opened: "weakref.WeakKeyDictionary[sa.Engine, list[Any]]" = weakref.WeakKeyDictionary()


def abandon(engine: sa.Engine) -> None:
    """Drop, in a forked child, what it inherited, and never close it: not now, not when garbage is collected, not at exit.

    SQLite's close rolls back and checkpoints, and would do so on the parent's transaction with locks that this process has not.
    """
    for connection in _opened.pop(engine, []):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    engine.dispose(close=False)


def check_place(path: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a path that cannot hold a ledger. Raises ConfigurationError; nothing is written."""
    if _is_folder(path):
        raise ConfigurationError(f"the database {path} is a directory. Give the path of a file.")
    kind = file_system_of(path, mounts)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"the database {path} is on a network file system ({kind}), where SQLite's locks do not hold. "
            f"Nothing was written. Put it on a local disk."
        )


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigurationError(
            f"the database {path} cannot be reached by this user ({error.strerror}). Nothing was made or opened. Give another path, or "
            f"check the modes of its folders"
        ) from error


def check_readable(path: Path) -> None:
    """Refuse a file that this user may not read. Raises ConfigurationError; nothing is opened."""
    if not os.access(path, os.R_OK):
        raise ConfigurationError(f"the ledger {path} cannot be read by this user. Nothing was changed. Check its mode and group.")


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the file system type of the mount that holds `path`, "" where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    where = path.resolve()
    best, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        if (where == Path(mount) or Path(mount) in where.parents) and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def check_library(journal_mode: str, path: Path, module: ModuleType | None = None) -> None:
    """Refuse a WAL ledger where this process's SQLite has the WAL-reset bug. Raises ConfigurationError."""
    version = library_version(module or sqlite_module())
    if journal_mode == "wal" and not wal_is_safe(version):
        shown = ".".join(map(str, version))
        raise ConfigurationError(
            f"the ledger {path} is in WAL mode and SQLite {shown} can corrupt such a database. It was not opened. "
            f"Either: pip install pysqlite3 — or, with all workers stopped: settled db journal delete"
        )


_checked: set[tuple[int, int]] = set()
_checking = threading.Lock()


def refuse_affected_wal(path: Path, module: ModuleType | None = None) -> None:
    """Refuse a WAL file by its header, before an affected library opens it: merely opening it may change it.

    Raises ConfigurationError. Opens no file where it need not: closing a descriptor drops all of this process's POSIX locks on
    that file, so a file that this process may already have open through SQLite is never read again.
    """
    if wal_is_safe(library_version(module or sqlite_module())):
        return
    with _checking:
        there = path.stat()
        if (there.st_dev, there.st_ino) in _checked:
            return
        with path.open("rb") as file:
            header = file.read(20)
        if len(header) == 20 and header[:16] == b"SQLite format 3\0" and header[18] == 2:
            check_library("wal", path, module)
        _checked.add((there.st_dev, there.st_ino))
