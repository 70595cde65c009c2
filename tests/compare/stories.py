"""One story, played by one system in real processes against one real destination, whose own ledger is counted at the end."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled.testing.http import ProviderClient, running_provider
from tests.compare.peers.base import REFERENCE
from tests.compare.postgres import postgres

ROOT: Final = Path(__file__).resolve().parents[2]
COMMITTED_SECONDS_MAX: Final = 40.0
CALL_SECONDS_MAX: Final = 180.0
HUNG_SECONDS: Final = 8.0
HANG_SECONDS: Final = 10.0
SETTLED_SECONDS_MAX: Final = 40.0
AFTERWARDS_SECONDS: Final = 3.0
"""After its last word a system is watched a little longer: a second effect may be on its way."""

STORIES: Final = {
    "killed": "the effect is committed, then the worker is killed (-9) before it can record it",
    "answer lost": "the effect is committed, then the connection is cut before the answer",
    "too late": "the effect is committed, the answer comes after the handler's deadline",
    "hung": "the effect is committed, the worker hangs (SIGSTOP) for eight seconds beside a second worker, then goes on",
}


class System(NamedTuple):
    """How one system is run: its module, the settings of its processes, and what it needs beside them."""

    name: str
    module: str
    setting: tuple[tuple[str, str], ...] = ()
    needs: str = ""


SYSTEMS: Final = (
    System("naive retry", "naive"),
    System("Huey", "huey_peer"),
    System("DBOS", "dbos_peer"),
    System("Procrastinate", "procrastinate_peer", needs="postgres"),
    System("Temporal", "temporal_peer", needs="server"),
    System("settled, no probe", "settled_peer"),
    System("settled, with a probe", "settled_peer", (("COMPARE_PROBE", "1"),)),
)


class Told(NamedTuple):
    """What came of a story. `effects` is the destination's own count; `seconds` until the system's last word, None if it never came."""

    system: str
    story: str
    key: bool
    effects: int
    says: str
    person: str
    seconds: float | None

    @property
    def truth(self) -> str:
        """What is wrong with what the system did or says, in a word; empty where nothing is."""
        if self.effects > 1:
            return f"{self.effects} effects"
        if self.effects == 1 and self.says == "failed":
            return "says failed, and it happened"
        if self.seconds is None:
            return "no answer"
        return ""


class Stage:
    """The processes of one story, in one temporary folder."""

    def __init__(self, system: System, folder: Path, url: str, *, key: bool) -> None:
        self.system = system
        self.hold = folder / "hold"
        store = folder / "store"
        store.mkdir()
        self.environment = {
            **os.environ, **dict(system.setting), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
            "COMPARE_FOLDER": str(store), "COMPARE_URL": url, "COMPARE_HOLD": str(self.hold), "COMPARE_KEY": "1" if key else "",
        }  # fmt: skip
        self.workers: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "log").open("ab")

    def call(self, role: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self._command(role), env=self.environment, capture_output=True, timeout=CALL_SECONDS_MAX, cwd=ROOT)

    def start(self, role: str = "work") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command(role), env=self.environment, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True,
            cwd=ROOT,
        )  # fmt: skip
        self.workers.append(process)
        return process

    def verdict(self) -> dict[str, Any]:
        answer = self.call("verdict")
        try:
            found: dict[str, Any] = json.loads(answer.stdout)
        except ValueError:
            raise RuntimeError(f"{self.system.name} gave no verdict: {answer.stderr.decode()[-500:]}") from None
        return found

    def close(self) -> None:
        for process in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()

    def _command(self, role: str) -> list[str]:
        return [sys.executable, "-m", f"tests.compare.peers.{self.system.module}", role]


def tell(system: System, story: str, *, key: bool, folder: Path) -> Told:
    """Play one story. Raises RuntimeError where the system could not be brought to it."""
    with running_provider(file=folder / "effects", idempotent=key) as provider, _server(system, folder) as more:
        stage = Stage(system, folder, provider.url, key=key)
        stage.environment |= more
        try:
            begun = _act(stage, provider.client, story)
            return _watch(stage, provider.client, Told(system.name, story, key, 0, "", "", None), begun)
        finally:
            stage.close()


def _act(stage: Stage, provider: ProviderClient, story: str) -> float:
    """Bring the story to its turning point; return when that was."""
    if story in ("killed", "hung"):
        stage.hold.touch()
    elif story == "answer lost":
        provider.fail_next("lose_answer")
    else:
        provider.fail_next("hang", seconds=HANG_SECONDS)
    if "COMPARE_DSN" in stage.environment:
        stage.call("prepare")
    if stage.system.module == "dbos_peer":
        _first_start(stage)
    submitted = stage.call("submit")
    if submitted.returncode:
        raise RuntimeError(f"nothing was submitted: {submitted.stderr.decode()[-500:]}")
    worker = stage.workers[-1] if stage.workers else stage.start()
    if not provider.wait(REFERENCE, "committed", timeout=COMMITTED_SECONDS_MAX):
        raise RuntimeError("the effect was never committed")
    begun = time.monotonic()
    if story == "killed":
        worker.kill()
        worker.wait()
        stage.hold.unlink()
        stage.start()
    elif story == "hung":
        os.kill(worker.pid, signal.SIGSTOP)
        stage.start()
        time.sleep(HUNG_SECONDS)
        stage.hold.unlink()
        os.kill(worker.pid, signal.SIGCONT)
    return begun


def _first_start(stage: Stage) -> None:
    """DBOS makes its tables when an application starts for the first time; only then can something be enqueued."""
    stage.start()
    _until(lambda: (Path(stage.environment["COMPARE_FOLDER"]) / "ready").exists(), 60)


def _watch(stage: Stage, provider: ProviderClient, told: Told, begun: float) -> Told:
    answer: dict[str, Any] = {}
    while time.monotonic() - begun < SETTLED_SECONDS_MAX:
        answer = stage.verdict()
        if answer["final"]:
            break
        time.sleep(0.3)
    seconds = time.monotonic() - begun if answer.get("final") else None
    time.sleep(AFTERWARDS_SECONDS)
    answer = stage.verdict()
    return told._replace(effects=provider.count(REFERENCE), says=answer["says"], person=answer["person"], seconds=seconds)


@contextlib.contextmanager
def _server(system: System, folder: Path) -> Iterator[dict[str, str]]:
    """Run what a system needs beside its workers, and say where it is."""
    if system.needs == "postgres":
        with postgres(folder) as dsn:
            yield {"COMPARE_DSN": dsn}
    elif system.needs == "server":
        place = folder / "server"
        place.mkdir()
        found = {"COMPARE_PORT": str(_free_port())}
        stage = Stage(system, place, "", key=False)
        stage.environment |= found
        try:
            stage.start("serve")
            _until(lambda: stage.call("ready").returncode == 0, 60)
            yield found
        finally:
            stage.close()
            shutil.rmtree(place, ignore_errors=True)
    else:
        yield {}


def _until(is_so: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise RuntimeError("it was not ready in time")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
