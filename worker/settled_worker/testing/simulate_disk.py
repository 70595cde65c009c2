"""A disk below SQLite that remembers what was synced, so that a power cut can take away what was not.

Promise: SQLite's own file layer does all the work; this one stands in front of its writes, truncations and syncs, records them,
and refuses them where a full or failing disk would. It is the process's default layer only inside `with`.
"""

import ctypes
import sys
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

_FULL: Final = 13
_IOERR_FSYNC: Final = 10 | (4 << 8)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
_CLOSE = CFUNCTYPE(c_int, c_void_p)
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)  # the name by its address: SQLite keeps more behind it
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)


class _Methods(Structure):
    """struct sqlite3_io_methods, up to its version 3."""

    _fields_ = (
        ("iVersion", c_int),
        *((name, c_void_p) for name in ("xClose", "xRead", "xWrite", "xTruncate", "xSync")),
        *((f"more{index}", c_void_p) for index in range(13)),
    )


class _File(Structure):
    _fields_ = (("pMethods", POINTER(_Methods)),)


class _Vfs(Structure):
    """struct sqlite3_vfs, up to its version 3."""

    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
        *((f"more{index}", c_void_p) for index in range(13)),
    )


class _Synced:
    """One file: what is surely on the disk, and what was written since."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.pending: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        for write in self.pending:
            _apply(self.content, write)
        self.pending.clear()


class Disk:
    """Use as `with Disk(module) as disk:`; ledgers opened inside stand on it. One thread, one at a time in a process."""

    def __init__(self, module: ModuleType) -> None:
        """`module` is the driver. Raises OSError where its library does not show how to register a file layer."""
        self.full = False
        self.syncs = 0
        self.at_sync: Callable[[], bool] | None = None
        self._files: dict[str, _Synced] = {}
        self._names: dict[int, str] = {}
        self._originals: dict[int, Any] = {}
        self._patched: dict[int, tuple[Any, Any]] = {}
        driver = sys.modules["pysqlite3._sqlite3" if module.__name__.startswith("pysqlite3") else "_sqlite3"]
        assert driver.__file__ is not None
        library = ctypes.CDLL(driver.__file__)
        try:
            find = library.sqlite3_vfs_find
            self._register, self._unregister = library.sqlite3_vfs_register, library.sqlite3_vfs_unregister
        except AttributeError as error:
            raise OSError("this SQLite does not show how to register a file layer") from error
        find.restype = POINTER(_Vfs)
        self._base = find(None)
        self._vfs = _Vfs.from_buffer_copy(self._base.contents)
        self._vfs.zName, self._vfs.pNext = b"settled-simulated", None
        self._open, self._delete = _OPEN(self._on_open), _DELETE(self._on_delete)
        self._base_open = _OPEN(self._base.contents.xOpen)
        self._base_delete = _DELETE(self._base.contents.xDelete)
        self._vfs.xOpen = ctypes.cast(self._open, c_void_p)
        self._vfs.xDelete = ctypes.cast(self._delete, c_void_p)

    def __enter__(self) -> Self:
        self._register(ctypes.byref(self._vfs), 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._unregister(ctypes.byref(self._vfs))
        self._register(self._base, 1)

    # ------------------------------------------------------------------ power cuts

    def forget(self) -> None:
        """Take what is on the disk for synced: what is opened from now on begins anew. No file may be open."""
        self._files.clear()

    def image(self, keeps: Callable[[int], bool]) -> dict[str, bytes]:
        """Return the files as a power cut would leave them now: what was synced, and of the later writes those that `keeps` picks."""
        found = {}
        for name, file in sorted(self._files.items()):
            content = bytearray(file.content)
            for index, write in enumerate(file.pending):
                if keeps(index):
                    _apply(content, write)
            found[name] = bytes(content)
        return found

    # ------------------------------------------------------------------ what SQLite calls

    def _on_open(self, _vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        done = int(self._base_open(ctypes.addressof(self._base.contents), name, file, flags, out))
        opened = ctypes.cast(file, POINTER(_File)).contents
        if done == 0 and name is not None and opened.pMethods:
            opened.pMethods = self._in_front_of(opened.pMethods)
            path = ctypes.string_at(name).decode()
            self._names[file] = path
            if path not in self._files:
                self._files[path] = _Synced(Path(path).read_bytes() if Path(path).exists() else b"")
        return done

    def _in_front_of(self, original: Any) -> Any:
        """Return methods that record and then call `original`; one table for each of SQLite's own."""
        address = ctypes.addressof(original.contents)
        if address not in self._patched:
            base = original.contents
            write, truncate, close = _WRITE(base.xWrite), _TRUNCATE(base.xTruncate), _CLOSE(base.xClose)

            def on_write(file: int, data: int, amount: int, offset: int) -> int:
                if self.full:
                    return _FULL
                done = int(write(file, data, amount, offset))
                if done == 0:
                    self._files[self._names[file]].pending.append((offset, ctypes.string_at(data, amount)))
                return done

            def on_truncate(file: int, size: int) -> int:
                done = int(truncate(file, size))
                if done == 0:
                    self._files[self._names[file]].pending.append((size, None))
                return done

            def on_sync(file: int, flags: int) -> int:
                self.syncs += 1
                if self.at_sync is not None and self.at_sync():
                    return _IOERR_FSYNC
                self._files[self._names[file]].sync()
                return 0  # what really reaches this machine's disk is of no interest here

            def on_close(file: int) -> int:
                self._names.pop(file, None)
                return int(close(file))

            made = _Methods.from_buffer_copy(base)
            calls = (_WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync), _CLOSE(on_close))
            for field, call in zip(("xWrite", "xTruncate", "xSync", "xClose"), calls, strict=True):
                setattr(made, field, ctypes.cast(call, c_void_p))
            self._patched[address] = (made, calls)
        return ctypes.pointer(self._patched[address][0])

    def _on_delete(self, _vfs: int, name: bytes, sync_folder: int) -> int:
        self._files.pop(name.decode(), None)
        return int(self._base_delete(ctypes.addressof(self._base.contents), name, sync_folder))


def _apply(content: bytearray, write: tuple[int, bytes | None]) -> None:
    offset, data = write
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
