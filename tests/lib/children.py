"""Start real Python processes that a test talks to line by line, and never leave one behind."""

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import settled

LIB = Path(settled.__file__).parents[1]


class Child:
    """A process that runs `code`; its `sys.argv[1:]` are `arguments`."""

    def __init__(self, code: str, *arguments: object, environ: Mapping[str, str] | None = None, pass_fds: tuple[int, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**(os.environ if environ is None else environ), "PYTHONPATH": str(LIB)},
            pass_fds=pass_fds,
            bufsize=0,  # or a second line, read ahead with the first, would never be seen by `select`
        )
        self.pid = self.process.pid

    def hear(self, *, seconds: float = 120.0) -> str:
        """Return the next line it prints; fails if none comes in time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        assert ready, f"the child said nothing for {seconds} s"
        return self.process.stdout.readline().decode().strip()

    def tell(self, line: str = "") -> None:
        """Send one line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def ask(self, line: str = "") -> str:
        """Send one line and return the next that comes back."""
        self.tell(line)
        return self.hear()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL it, whatever state it is in, and reap it."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
