"""Be one process start that others can prove dead: a random id, a held lock, a mark that children carry.

Promise: what these functions call gone is gone. Whatever cannot be looked at is answered with "no proof", never with "gone".

The lock is a flock on an inheritable descriptor. Runners are given it and plain forks keep it, so a free lock means that the
process, its runners and its forked children have ended. Children that were exec'd without it carry the mark in their
environment instead. Look at the lock first and at the marks second: a fork that execs in between then appears in one of the two.
A forked child that closed its descriptors, as daemons do, shows neither (its environment is the one that its parent was started
with): it still has the flight recorder mapped.
"""

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from settled.clock import boot_id_short
from settled.core.errors import ConfigurationError
from settled.execution.cgroup import make_group, remove_group

MARK: Final = "SETTLED_INCARNATION"
RECORDER_SUFFIX: Final = ".recorder"
_PROC: Final = Path("/proc")
_MOUNTS: Final = _PROC / "self/mountinfo"
_HIDES_OTHERS: Final = frozenset({"2", "invisible"})
_HIDES_SOME_OWN: Final = frozenset({"4", "ptraceable"})
_PASSES_MAX: Final = 20
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC  # the kernel's own number for it; whoever is in it is shown the processes of all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One process start. `lock_dev` and `lock_inode` are stored, because a lock file of the same name proves nothing."""

    id: str
    boot_id: str
    pid: int
    start_ticks: int | None
    pid_namespace: int | None  # whose processes it and its children are; None where the system does not tell
    lock_path: Path
    lock_dev: int
    lock_inode: int
    lock_fd: int
    cgroup: Path | None = None  # below it each of its runners gets a control group of its own

    @classmethod
    def start(cls, run_dir: Path, *, boot_id: str | None = None, handed: Path | None = None) -> Self:
        """Create and hold the lock file in `run_dir`, and mark this process's environment for the children to come.

        `handed` is a control group that was handed to this process: one for the runners is made below it, if the system lets us.
        Raises ConfigurationError where the folder cannot hold a locked file.
        """
        identity = secrets.token_hex(10)
        path = run_dir / f"{identity}.lock"
        try:
            lock_fd = _create_locked(path)
        except OSError as error:
            raise ConfigurationError(
                f"the lock file {path} cannot be made and locked ({error.strerror}). Nothing was started. "
                f"The folder must be writable and on a local file system."
            ) from error
        there = os.fstat(lock_fd)
        os.environ[MARK] = marked(os.environ, identity)[MARK]
        return cls(
            id=identity,
            boot_id=boot_id or boot_id_short(),
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            pid_namespace=pid_namespace(),
            lock_path=path,
            lock_dev=there.st_dev,
            lock_inode=there.st_ino,
            lock_fd=lock_fd,
            cgroup=None if handed is None else make_group(handed, f"settled-{identity}"),
        )

    def release(self) -> None:
        """Give up this process's own hold and its mark; children that still live keep theirs. Does nothing in a forked child."""
        if os.getpid() != self.pid:
            return
        others = [name for name in os.environ.get(MARK, "").split(",") if name not in ("", self.id)]
        os.environ[MARK] = ",".join(others)
        # Closed, never unlocked: unlocking would take the lock from the children that share this descriptor.
        with contextlib.suppress(OSError):
            os.close(self.lock_fd)
        if self.cgroup is not None:
            remove_group(self.cgroup)


def shared_mode(folder: Path) -> int:
    """Return the mode for a file of this ledger: 0660 in a folder made for a group (setgid, group may write), else 0600."""
    group = stat.S_ISGID | stat.S_IWGRP
    return 0o660 if folder.stat().st_mode & group == group else 0o600


def marked(environ: Mapping[str, str], incarnation: str) -> dict[str, str]:
    """Return a copy of `environ` that carries the mark of `incarnation` besides those that it carries already."""
    names = [name for name in environ.get(MARK, "").split(",") if name]
    return {**environ, MARK: ",".join([*names, incarnation] if incarnation not in names else names)}


def marks_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the incarnations that `environ` names, outermost first."""
    return tuple(name for name in environ.get(MARK, "").split(",") if name)


def start_ticks(pid: int) -> int | None:
    """Return when `pid` was started, in clock ticks since boot: with it a reused pid is told apart. None if it cannot be read."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])  # after the last ")": a command name may hold spaces and brackets
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int | None:
    """Return the number of the PID namespace of this process (a container has its own); None if it cannot be read."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def lock_is_free(path: Path, dev: int, inode: int) -> bool | None:
    """Return whether nobody holds the lock of exactly this file; None if it is missing, another one or not readable: no proof."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        there = os.fstat(fd)
        if (there.st_dev, there.st_ino) != (dev, inode):
            return None
        # Shared, so that two observers do not take each other for the owner; unlocked by hand, because a fork in
        # another thread may have copied the descriptor meanwhile and would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(fd)


def remove_lock_file(path: Path, dev: int, inode: int) -> bool:
    """Remove the lock file of an incarnation that was settled for good; return False if it is held or is another file."""
    if lock_is_free(path, dev, inode) is not True:
        return False
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return True


def shows_processes_of(namespace: int | None) -> bool:
    """Return whether /proc lists here what lives in that PID namespace: it is ours, or we are in the first one.

    The number of one that is gone may be given to a new one. Then nothing lives in the old one any more, and the answer holds.
    """
    mine = pid_namespace()
    return mine is not None and mine in (namespace, _FIRST_PID_NAMESPACE)


def marked_processes(incarnation: str, *, uid: int | None = None, started_ticks: int | None = None) -> list[int] | None:
    """Return the pids that carry the mark or map the recorder; None if one of the user `uid` (default ours) hides what it has.

    A process that hides its environment does not matter if it is older than `started_ticks`, the start of the incarnation:
    it is no descendant. A process started meanwhile is found too: the list is read until it shows nothing new. Where the system
    leaves other users' processes out of that list (hidepid, ProtectProc=), their absence from it shows nothing: None.
    """
    wanted = os.geteuid() if uid is None else uid
    if os.geteuid() != 0 and is_list_partial(wanted == os.geteuid()):
        return None
    seen: set[int] = set()
    found: list[int] = []
    for _ in range(_PASSES_MAX):
        try:
            fresh = [pid for pid in _pids() if pid not in seen]
        except OSError:
            return None
        if not fresh:
            return sorted(found)
        for pid in fresh:
            carries = _carries(pid, incarnation.encode())
            if carries is False and not _is_older(pid, started_ticks):
                carries = _maps(pid, incarnation.encode())
            if carries is None and not _is_no_descendant(pid, wanted, started_ticks):
                return None
            if carries:
                found.append(pid)
        seen.update(fresh)
    return None


def is_list_partial(own: bool, mounts: Path = _MOUNTS) -> bool:
    """Return whether /proc may leave out processes of another user, or, for `own`, even of this one; True where it cannot be told."""
    try:
        lines = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return True
    options = [fields[-1].split(",") for fields in lines if len(fields) > 4 and fields[4] == str(_PROC)]
    hiding = _HIDES_SOME_OWN if own else _HIDES_OTHERS | _HIDES_SOME_OWN
    return bool(options) and any(option.removeprefix("hidepid=") in hiding for option in options[-1] if option.startswith("hidepid="))


def _create_locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, shared_mode(path.parent))  # not by the umask: the group must be able to look
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # new and unknown to anyone, so it cannot be held
        os.set_inheritable(fd, True)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())


def _carries(pid: int, name: bytes) -> bool | None:
    """Return whether the environment of `pid` names the incarnation; None if it cannot be read."""
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False  # ended meanwhile, or a thread of the kernel
    except OSError:
        return None
    prefix = MARK.encode() + b"="
    return any(name in entry[len(prefix) :].split(b",") for entry in entries if entry.startswith(prefix))


def _maps(pid: int, name: bytes) -> bool | None:
    """Return whether `pid` has the recorder of the incarnation mapped; None if that cannot be read. An observer maps it as well."""
    if pid == os.getpid():
        return False
    try:
        return b"/" + name + RECORDER_SUFFIX.encode() in (_PROC / str(pid) / "maps").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return None


def _is_older(pid: int, started_ticks: int | None) -> bool:
    its_start = start_ticks(pid)
    return started_ticks is not None and its_start is not None and its_start < started_ticks


def _is_no_descendant(pid: int, uid: int, started_ticks: int | None) -> bool:
    """Return whether `pid` has ended, is older than the incarnation, or has none of its four user ids in common with it."""
    if _is_older(pid, started_ticks):
        return True
    try:  # not by the owner of its /proc folder: that is root for whatever may not be dumped
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
        return str(uid) not in next(line for line in lines if line.startswith("Uid:")).split()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, StopIteration):
        return False
