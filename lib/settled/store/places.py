"""Make the folders of a ledger, private or shared with one group, whatever the umask is.

Promise: only what is made here is changed. A folder that exists is used as it is, or refused.
"""

import errno
import os
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from settled.core.errors import ConfigurationError

try:
    import grp
except ImportError:  # pragma: no cover - not a POSIX system
    grp = None  # type: ignore[assignment]

_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.02


class Access(NamedTuple):
    """Who may use a ledger: its owner alone, or the members of one group too."""

    group: str | None
    group_id: int

    @property
    def file_mode(self) -> int:
        return 0o600 if self.group is None else 0o660

    @property
    def folder_mode(self) -> int:
        """The setgid bit gives what SQLite makes beside the ledger the group, too."""
        return 0o700 if self.group is None else 0o2770


PRIVATE = Access(None, -1)


def find_access(group: str | None) -> Access:
    """Return the access for a group given by name or number. Raises ConfigurationError for one that does not exist."""
    if group is None:
        return PRIVATE
    try:
        return Access(group, grp.getgrnam(group).gr_gid)
    except KeyError:
        if group.isdecimal():
            return Access(group, int(group))
        raise ConfigurationError(f"there is no group {group!r} on this system. Nothing was made. Create it: groupadd {group}") from None


def make_folders(folder: Path, access: Access) -> None:
    """Make `folder` and the parents that are missing. Raises ConfigurationError where that fails or an existing one cannot serve."""
    missing = []
    above = folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    made = [_make_folder(each, access) for each in reversed(missing)]
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder. Nothing was made. Choose another path for the ledger.")
    ours = bool(made) and made[-1]
    if access.group is not None and not ours and not _serves(folder, access):
        raise ConfigurationError(
            f"the folder {folder} does not belong to group {access.group} with setgid and write access. Nothing was made. "
            f"Run: chgrp {access.group} {folder} && chmod 2770 {folder}"
        )


def make_run_directory(ledger: Path, access: Access | None) -> Path:
    """Make the folder for locks, recorders and doorbells beside a ledger; `access` None: as the ledger's own file has it."""
    if access is None:
        there = ledger.stat()
        shared = there.st_mode & stat.S_IWGRP
        access = Access(str(there.st_gid), there.st_gid) if shared else PRIVATE
    folder = ledger.with_name(ledger.name + ".run")
    if not folder.is_dir():
        _make_folder(folder, access)
    return folder


def open_shared(path: Path) -> int:
    """Open a file of the run directory for all who use the ledger, made where it is missing; raise OSError where that fails."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    if _is_of_a_group(path.parent):
        os.fchmod(fd, 0o660)
    return fd


def open_pipe(path: Path) -> int:
    """Open a named pipe of the run directory, not to block on it, made where it is missing; raise OSError where that fails."""
    is_new = False
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
        is_new = True
    # A reader too: a pipe without one ends whoever writes to it.
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileExistsError(errno.EEXIST, "it is no pipe", str(path))
    if is_new and _is_of_a_group(path.parent):
        os.fchmod(fd, 0o660)
    return fd


def _is_of_a_group(folder: Path) -> bool:
    """Whether the ledger is a group's: its members use its files too."""
    group = stat.S_ISGID | stat.S_IWGRP
    return folder.stat().st_mode & group == group


def range_lock(kind: int, start: int) -> bytes:
    """Return the C struct flock for one byte from `start`; an OFD lock belongs to the open file, not to the process."""
    if sys.platform == "darwin":
        return struct.pack("@qqihh", start, 1, 0, kind, os.SEEK_SET)
    return struct.pack("@hhqqi4x", kind, os.SEEK_SET, start, 1, 0)


def own(target: int | Path, shown: Path, access: Access, mode: int) -> None:
    """Give a file or folder made by us its group and mode. Raises ConfigurationError where this user may not."""
    try:
        if access.group is not None:
            os.chown(target, -1, access.group_id)
        os.chmod(target, mode)
    except OSError as error:
        raise ConfigurationError(
            f"{shown} cannot be given to group {access.group} ({error.strerror}). No ledger was made. "
            f"Run settled init as a member of that group."
        ) from error


def _make_folder(folder: Path, access: Access) -> bool:
    """Make a folder; return False where another process has just made it, and gives it mode and group itself."""
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        if folder.is_dir():
            return False
        raise ConfigurationError(
            f"the folder {folder} cannot be made ({error.strerror}). No ledger was made. Make it, or choose another path."
        ) from error
    own(folder, folder, access, access.folder_mode)
    return True


def _serves(folder: Path, access: Access) -> bool:
    """Return whether a group can work in a folder; another process may have made it just now and be about to hand it over."""
    needed = stat.S_ISGID | stat.S_IRWXG
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        there = folder.stat()
        if there.st_gid == access.group_id and there.st_mode & needed == needed:
            return True
    return False
