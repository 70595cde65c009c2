"""Wake the workers of a ledger after a commit: one datagram socket per listener in the ledger's run directory.

Promise: the bell is a hint and polling is the truth. Ringing never blocks, never raises and never removes a file; a bell that
is missing, stale, full or forbidden is passed over.
"""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from settled.clock import wall_us
from settled.core.errors import ConfigurationError
from settled.execution.incarnation import shared_mode

SUFFIX: Final = ".bell"
_ADDRESS_BYTES_MAX: Final = 103  # what sun_path takes everywhere: 107 on Linux, 103 on macOS
_DRAIN_MAX: Final = 1024
# A listing is kept only once its folder has been still for so long: two changes within one tick of the file system's clock
# leave the same mtime.
_STILL_US: Final = 100_000


class Doorbell:
    """One listener's bell, ready for a selector by `fileno()`."""

    def __init__(self, bell: socket.socket, path: Path, inode: int) -> None:
        """Use `listen`."""
        self.path, self._bell, self._inode, self._pid = path, bell, inode, os.getpid()

    @classmethod
    def listen(cls, run_dir: Path, name: str) -> Self:
        """Hang a bell named `name` into `run_dir`; raises ConfigurationError if it cannot, and then polling still works."""
        path = run_dir / (name + SUFFIX)
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))
        try:
            mode = shared_mode(run_dir)
            bell.setblocking(False)
            _with_address(run_dir, path.name, bell.bind)
            path.chmod(mode)  # whoever may submit may ring
            return cls(bell, path, path.stat(follow_symlinks=False).st_ino)
        except OSError as error:
            bell.close()
            raise ConfigurationError(f"no doorbell can be hung at {path} ({error.strerror or error}). Work is found by polling.") from error

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when somebody has rung."""
        return self._bell.fileno()

    def drain(self) -> int:
        """Take the rings that have come, at most 1,024, and return how many; never waits."""
        for rings in range(_DRAIN_MAX):
            try:
                self._bell.recv(16)
            except OSError:
                return rings
        return _DRAIN_MAX

    def close(self) -> None:
        """Take the bell down. A forked child only closes its copy, and a file that took this one's place is left alone."""
        if self._bell.fileno() < 0:
            return
        with suppress(OSError):
            if os.getpid() == self._pid and self.path.stat(follow_symlinks=False).st_ino == self._inode:
                self.path.unlink()
        self._bell.close()


class Bells:
    """The bells of one folder as of one change of it."""

    __slots__ = ("folder", "names", "state")

    def __init__(self, folder: str, state: tuple[int, int, int], names: list[str]) -> None:
        self.folder, self.state, self.names = folder, state, names

    def ring(self) -> int:
        """Ring them all and return how many took it."""
        try:
            return _ring(self) if self.names else 0
        except (OSError, ValueError):
            return 0


_listings: dict[str, Bells] = {}


def known_bells(run_dir: Path | str) -> Bells | None:
    """Return the bells of `run_dir` as they were at the last look, which costs nothing; None where there was none."""
    known = _listings.get(os.fspath(run_dir))
    return known if known is not None and known.names else None


def ring_all(run_dir: Path | str, rung: Bells | None = None) -> int:
    """Ring every bell in `run_dir` and return how many took it; none where those in `rung` are still all."""
    try:
        bells = _list(os.fspath(run_dir))
    except (OSError, ValueError):
        return 0
    return 0 if bells is rung else bells.ring()


def _list(folder: str) -> Bells:
    there = os.stat(folder)
    state = (there.st_dev, there.st_ino, there.st_mtime_ns)
    known = _listings.get(folder)
    if known is not None and known.state == state:
        return known
    bells = Bells(folder, state, [name for name in os.listdir(folder) if name.endswith(SUFFIX)])
    if wall_us() - there.st_mtime_ns // 1000 > _STILL_US:
        _listings[folder] = bells
    return bells


def _ring(bells: Bells) -> int:
    taken = 0
    # A socket of this call: a kept one could, after a fork or a daemon's closing of all descriptors, be somebody else's.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ringer:
        ringer.setblocking(False)
        for name in tuple(bells.names):
            try:
                _with_address(bells.folder, name, lambda address: ringer.sendto(b"!", address))
                taken += 1
            except BlockingIOError:
                taken += 1  # its queue is full, so it has been rung
            except (ConnectionRefusedError, FileNotFoundError):
                # Nobody listens, and nobody can under this name again without a change of the folder, which is seen.
                with suppress(ValueError):
                    bells.names.remove(name)
            except OSError:
                continue
    return taken


def _with_address(folder: Path | str, name: str, use: Callable[[str], object]) -> None:
    """Call `use` with an address of the socket that fits into sun_path, however long the path is."""
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX or not sys.platform.startswith("linux"):
        use(path)
        return
    there = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{there}/{name}")
    finally:
        os.close(there)
