"""Start the processes of a round, and end them: workers with their runners, and whoever submits."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from settled.app import App
from settled.clock import monotonic_us
from settled.testing.sandbox import Sandbox
from settled_worker.testing import certified
from settled_worker.testing.points import NONE

_LOOK_SECONDS: Final = 0.03


class RoundFailedError(Exception):
    """A round could not be played. Its message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all rounds of a certification share. `terms` are the scaled terms, `environment` is the sandbox's."""

    theirs: App
    app_reference: str
    contract: str
    terms: Mapping[str, Mapping[str, Any]]
    sandbox: Sandbox
    environment: Mapping[str, str]
    here: Path


@contextlib.contextmanager
def started(setting: Setting, folder: Path, *arguments: str, point: str, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker, or what `arguments` say; at the end of the block it and all that it started are killed, as a control group is."""
    token = f"CERTIFIED_WORKER={secrets.token_hex(8)}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    places = dict.fromkeys([str(setting.here), *(path for path in sys.path if path)])
    environ = {
        **kept,
        **setting.environment,
        "PYTHONPATH": os.pathsep.join(places),
        certified.APP: setting.app_reference,
        certified.TERMS: json.dumps(setting.terms),
        certified.FOLDER: str(folder),
        certified.POINT: "" if point == NONE else point,
        certified.HOST: "" if host == NONE else host,
        token.partition("=")[0]: token.partition("=")[2],
    }
    with (folder / "workers.log").open("ab") as log:
        command = [sys.executable, "-m", certified.__name__, *arguments]
        process = subprocess.Popen(command, cwd=setting.here, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        kill_all(token)


def kill_all(token: str) -> None:
    """Kill every process that carries the token, until there is none."""
    wanted = token.encode()
    while True:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                carries = wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if carries and Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(name))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Look until the condition holds; False where it did not within `seconds`."""
    until_us = monotonic_us() + round(seconds * 1_000_000)
    while not condition():
        if monotonic_us() > until_us:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
