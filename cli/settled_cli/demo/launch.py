"""Start a shop as a process of its own, and stop it when the block ends."""

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

READY_SECONDS: Final = 20.0


class RunningShop(NamedTuple):
    url: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def running_shop(ledger: Path, *, port: int = 0, idempotent: bool = False) -> Iterator[RunningShop]:
    """Yield the shop once it is ready. Raises RuntimeError if it does not become so; its own words are on standard error."""
    command = [sys.executable, "-m", "settled_cli.demo.shop", "--ledger", str(ledger), "--port", str(port), "--end-with-stdin"]
    command += ["--idempotent"] if idempotent else []
    # Its standard input is ours to close: whatever ends this process, kill -9 included, ends the shop.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield RunningShop(_read_url(process), process)
    finally:
        _stop(process)


def _read_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], READY_SECONDS)[0]:
        raise RuntimeError(f"the shop was not ready within {READY_SECONDS:.0f} seconds")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the shop ended with {process.wait()} before it was ready")
    return str(json.loads(line)["url"])


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
