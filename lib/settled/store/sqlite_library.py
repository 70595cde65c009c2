"""Which SQLite this process uses, and whether it may work on a WAL ledger.

SQLite 3.7.0 to 3.51.2 can corrupt a WAL database that several connections write and checkpoint; it is fixed in 3.51.3
and in the backports 3.50.7 and 3.44.6. Source: sqlite.org/wal.html, "the WAL-reset bug".
"""

import importlib
from functools import cache
from types import ModuleType
from typing import Any, Final

_FIXED_BACKPORTS: Final = {(3, 50): 7, (3, 44): 6}
_FIXED: Final = (3, 51, 3)
_FIRST: Final = (3, 7, 0)


@cache
def sqlite_module() -> ModuleType:
    """Return the one driver module of this process: pysqlite3 where it is installed, else the standard library's."""
    try:
        module = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        module = importlib.import_module("sqlite3")
    _bind_quickly(module)
    return module


def _bind_quickly(module: ModuleType) -> None:
    """Answer the driver's question how None and bytes are to be adapted: as they are.

    Without an answer it looks for one in vain at each value that it binds, which takes a microsecond: more than all the rest of a
    row. Both answers are functions in C that return what they are given. An adapter of the user's own stays.
    """
    known = getattr(module, "adapters", {})
    for kind, identity in ((type(None), {}.get), (bytes, bytes)):
        if (kind, module.PrepareProtocol) not in known:
            module.register_adapter(kind, identity)


def wal_is_safe(version: tuple[int, ...]) -> bool:
    """Return whether this version of SQLite is free of the WAL-reset bug."""
    if version >= _FIXED or version < _FIRST:
        return True
    backport = _FIXED_BACKPORTS.get((version[0], version[1]))
    return backport is not None and version[2] >= backport


def library_version(module: Any) -> tuple[int, ...]:
    """Return the version of the SQLite library behind a driver module."""
    return tuple(module.sqlite_version_info)
