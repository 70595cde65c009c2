"""Hold the worker's end of one supervisor process: start it, pass it wishes and sockets, read its events, end it.

Promise: nothing here waits. What the supervisor was told is in its hands once `pending` is false, even if the worker dies in
the next instant; and a supervisor that is given up takes all processes that carry its mark along.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from settled.core.errors import ConfigurationError
from settled.execution.cgroup import kill_group
from settled.execution.descendants import kill_marked
from settled.execution.wire import CONTROL_BYTES_MAX, Line, Message

_STDERR: Final = 2
_KILL_LOOKS: Final = 3
_END_SECONDS: Final = 5.0


class SupervisorLink:
    """One supervisor and the sockets to it and through it."""

    def __init__(
        self,
        app_reference: str,
        *,
        recorder: Path | None,
        keep: tuple[int, ...],
        runner_line_bytes_max: int,
        runner_memory_bytes_max: int,
        cgroup: Path | None = None,
    ) -> None:
        """`keep` are descriptors that the supervisor and every runner hold open; `cgroup` is where each runner gets a group of its own.

        Raises OSError or ConfigurationError.
        """
        if not sys.platform.startswith("linux"):
            raise ConfigurationError("process isolation needs Linux; for development elsewhere use isolation='thread'")
        self.token = secrets.token_hex(8)
        self.greeted = False
        self._runner_line_bytes_max, self._cgroup = runner_line_bytes_max, cgroup
        self._handed_over: list[socket.socket] = []  # ours to close once the supervisor has its copies
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "settled.execution.supervisor", app_reference, "--control-fd", str(theirs.fileno())]
        command += ["--token", self.token, "--line-bytes-max", str(runner_line_bytes_max)]
        command += ["--memory-bytes-max", str(runner_memory_bytes_max)]
        command += [part for descriptor in keep for part in ("--keep-fd", str(descriptor))]
        command += ["--recorder", str(recorder)] if recorder else []
        command += ["--cgroup", str(cgroup)] if cgroup else []
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR if _is_open(_STDERR) else subprocess.DEVNULL,  # what handlers print is not the worker's output
                    pass_fds=(theirs.fileno(), *keep),
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self.line = Line(ours, CONTROL_BYTES_MAX)

    @property
    def pending(self) -> bool:
        """Whether something told to the supervisor is not in its hands yet."""
        return self.line.pending

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, number: int, terminate_boot_us: int, kill_boot_us: int) -> Line:
        """Ask for a runner that is to be ready by then; return our end of its socket."""
        ours, theirs = socket.socketpair()
        self._handed_over.append(theirs)
        wish = {"op": "spawn", "runner": number, "terminate_boot_us": terminate_boot_us, "kill_boot_us": kill_boot_us}
        try:
            self.line.send(wish, (theirs.fileno(),))
        except BaseException:
            ours.close()
            raise
        self.push()
        return Line(ours, self._runner_line_bytes_max)

    def arm(self, number: int, terminate_boot_us: int, kill_boot_us: int) -> None:
        """TERM to the runner's group at the one moment, KILL at the other, whatever becomes of this process. Waits for a push."""
        self.line.queue({"op": "arm", "runner": number, "terminate_boot_us": terminate_boot_us, "kill_boot_us": kill_boot_us})

    def move(self, number: int, terminate_boot_us: int, kill_boot_us: int) -> None:
        """As `arm`, now that what was armed for has ended: a runner that TERM is under way to is killed instead."""
        self.line.queue({"op": "move", "runner": number, "terminate_boot_us": terminate_boot_us, "kill_boot_us": kill_boot_us})

    def disarm(self, number: int) -> None:
        """What was armed for has ended, and nothing follows: a runner that TERM is under way to is killed."""
        self.line.send({"op": "disarm", "runner": number})

    def kill(self, number: int) -> None:
        """KILL the runner's group now; `gone` follows once nothing of it is left."""
        self.line.send({"op": "kill", "runner": number})

    def ping(self) -> None:
        self.line.send({"op": "ping"})

    def push(self) -> None:
        """Write what can be written now."""
        self.line.push()
        if not self.line.pending:
            self._close_handed_over()

    def events(self) -> Iterator[Message]:
        """Yield what the supervisor has told. Raises WireError."""
        for event in self.line.receive():
            self.greeted = self.greeted or event.get("event") == "hello"
            yield event

    def dismiss(self) -> None:
        """Close the socket: the supervisor ends the runners that are idle, waits for the others, and leaves."""
        self.line.close()
        self._close_handed_over()

    def wait(self, seconds: float) -> bool:
        """Wait for the supervisor's end and reap it; False if it is still there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def destroy(self) -> None:
        """Kill the supervisor and whatever carries its mark. Proves nothing: without it orphans are nobody's children."""
        self._process.kill()
        self.wait(_END_SECONDS)
        self.dismiss()
        for _ in range(_KILL_LOOKS):
            if not kill_marked(f"{self.token}:"):
                break
        if self._cgroup is not None:
            kill_group(self._cgroup)

    def forget_in_child(self) -> None:
        """Close our sockets in a forked child, or the supervisor would not see this worker die."""
        self.line.close()
        self._close_handed_over()

    def _close_handed_over(self) -> None:
        for end in self._handed_over:
            end.close()
        self._handed_over.clear()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
