"""Start the demo's own processes, a worker and a naive payer, and never leave one behind."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

WAIT_SECONDS: Final = 60.0
_PACKAGES: Final = ("settled", "settled_worker", "settled_cli")
_END_SECONDS: Final = 20.0


class DemoFailedError(Exception):
    """The demo could not be carried through. Its message is one sentence."""


@contextlib.contextmanager
def process(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m …` in `folder` while the block runs, then ask it to end, then make it. Its words go into a file there."""
    with (folder / "processes.log").open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def worker(folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a worker on the ledger and the settings in `folder`."""
    return process(folder, "settled_cli.main", "worker", "run", "--app", "settled_cli.demo.payments:app")


def naive_payer(folder: Path, url: str, reference: str, amount_cents: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a payer that tries again."""
    return process(folder, "settled_cli.demo.naive", url, reference, str(amount_cents))


def environment() -> dict[str, str]:
    """Return an environment that finds our packages from any folder and knows none of this user's own settings."""
    places = dict.fromkeys(
        str(Path(spec.origin).parents[1]) for name in _PACKAGES if (spec := importlib.util.find_spec(name)) and spec.origin
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])}


def wait_for(condition: Callable[[], bool], what: str, alive: subprocess.Popen[bytes] | None = None) -> None:
    """Return when the condition holds. Raises DemoFailedError when time is over, or when the process it depends on has ended."""
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        if alive is not None and alive.poll() is not None:
            raise DemoFailedError(f"the worker ended with {alive.returncode} before {what}")
        if time.monotonic() > until:
            raise DemoFailedError(f"waited {WAIT_SECONDS:.0f} seconds in vain until {what}")
        time.sleep(0.05)
