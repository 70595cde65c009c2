"""Real workers over the demo's shop: started, watched and killed from outside."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from settled import App, LedgerUnavailableError, Operation, Status
from settled.clock import wall_us
from settled.core.words import SETTLED
from settled.steps.refusing import refused_by
from settled.store.creation import Journal, create_ledger
from settled_cli.demo import client
from tests.conftest import eventually
from tests.lib.children import Child
from tests.lib.execution.groups import enter
from tests.lib.execution.outside import children_of, is_alive, kill
from tests.worker.apps import effects

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).with_name("apps")
QUICK: dict[str, str] = {
    "SETTLED_SWEEPS__LEASES__EVERY_SECONDS": "0.2",
    "SETTLED_SWEEPS__RECONCILE__EVERY_SECONDS": "0.2",
    "SETTLED_SWEEPS__ESCALATE__EVERY_SECONDS": "0.5",
    "SETTLED_CONTRACTS__CHARGE_PROCESS__PROBE_INTERVAL_SECONDS": "0.3",
    "SETTLED_CONTRACTS__CHARGE_THREAD__PROBE_INTERVAL_SECONDS": "0.3",
}
"""The same sweeps, more often: a test should not wait for seconds."""
LEASE = {"SETTLED_WORKER__LEASE_SECONDS": "1", "SETTLED_WORKER__BEAT_SECONDS": "0.3"}
ISOLATIONS = pytest.mark.parametrize("isolation", ["process", "thread"])


def processes_of(worker: int) -> list[int]:
    """Return the supervisors of this worker and their runners."""
    supervisors = children_of(worker, "settled.execution.supervisor")
    return supervisors + [runner for one in supervisors for runner in children_of(one, "settled.execution.runner")]


def fresh() -> str:
    """Return a reference that no other test uses at the shared shop."""
    return f"r-{secrets.token_hex(6)}"


class Service:
    """One worker process, with all that it starts. `kill` ends all of it at once, as a service manager does with a cgroup."""

    def __init__(
        self,
        place: "Place",
        *arguments: str,
        point: str | None = None,
        settings: Mapping[str, str] = {},
        into: Path | None = None,
        app: str = "effects:app",
    ) -> None:
        self.token = f"TEST_SERVICE={secrets.token_hex(8)}"
        self.log = place.folder / f"worker-{self.token[-16:]}.log"
        name, _, value = self.token.partition("=")
        environ = {**place.environ, **QUICK, **settings, name: value}
        script = [str(APPS / "crash.py"), point, "--"] if point else ["-m", "settled_cli.main"]
        command = [sys.executable, *script, "worker", "run", "--app", app, *arguments]
        command = command if into is None else enter(into, command)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=APPS, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self.process.pid

    def ready(self) -> Self:
        """Wait until it says that it has started."""
        eventually(lambda: self.told("worker.started") or self.process.poll() is not None, seconds=30)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def speaks(self) -> bool:
        """Whether it has said anything yet."""
        return self.log.stat().st_size > 0

    def told(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event; the last line may still be half written."""
        whole = self.log.read_text().rpartition("\n")[0]
        lines = (line for line in whole.splitlines() if line.startswith("{"))
        return [line for line in map(json.loads, lines) if line.get("event") == event]

    def family(self) -> list[int]:
        """Return every process that carries the token of this service."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if self.token.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and is_alive(int(name)):
                    found.append(int(name))
        return found

    def kill_at_once(self) -> None:
        """SIGKILL worker, supervisor and runners in one moment: what they started lives on, and nobody is left to end it."""
        ours = [self.pid, *processes_of(self.pid)]
        for pid in ours:
            kill(pid, signal.SIGSTOP)  # first, or each of them would act on the death of another
        for pid in ours:
            kill(pid)
        self.process.wait(20)
        eventually(lambda: not any(map(is_alive, ours)))

    def kill(self) -> None:
        """SIGKILL the worker first, then whatever it started."""
        kill(self.pid)
        while family := [pid for pid in self.family() if pid != self.pid]:
            for pid in family:
                kill(pid)
        self.process.wait(20)

    def freeze(self, here: "Place") -> None:
        """SIGSTOP at a moment at which it holds no lock of the ledger: else nobody could write, whatever they had decided."""
        while True:
            self.signal(signal.SIGSTOP)
            try:
                with here.app.ledger.write():
                    return
            except LedgerUnavailableError:
                self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 30.0) -> int:
        """Wait for its end by itself; return the exit code."""
        return self.process.wait(seconds)

    def stop(self) -> None:
        """SIGTERM, and see that it ends in good order."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0, self.log.read_text()


class Place:
    """A ledger, a shop and a folder for marks, with the services that run on them."""

    def __init__(self, folder: Path, shop: str, journal: Journal | None = None) -> None:
        self.folder, self.shop, self.marks = folder, shop, folder / "marks"
        self.marks.mkdir()
        self.database = folder / "settled.db"
        self.app = App(self.database)
        effects.declare(self.app)
        create_ledger(self.database, journal=journal, at_us=wall_us())
        self.services: list[Service] = []
        self.children: list[Child] = []
        python_path = os.pathsep.join(str(ROOT / name) for name in ("lib", "worker", "cli"))
        self.environ = {
            **os.environ,
            "PYTHONPATH": python_path,
            "SETTLED_DATABASE": str(self.database),
            "SETTLED_LOGS__FORMAT": "json",
            "SETTLED_LOGS__LEVEL": "debug",
            "SHOP": shop,
            "MARKS": str(self.marks),
        }

    def worker(self, *arguments: str, **options: Any) -> Service:
        self.services.append(Service(self, *arguments, **options))
        return self.services[-1]

    def settled_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `settled` with these arguments to its end."""
        command = [sys.executable, "-m", "settled_cli.main", *arguments]
        return subprocess.run(command, cwd=APPS, env=self.environ, capture_output=True, text=True, timeout=60, check=False)

    def child(self, code: str, *arguments: object) -> Child:
        """Start Python code beside the workers, to be talked to line by line. Its last argument is where our modules lie."""
        paths = f"{APPS}{os.pathsep}{self.environ['PYTHONPATH']}"  # a Child has a path of its own
        self.children.append(Child(code, *arguments, paths, environ=self.environ))
        return self.children[-1]

    def submit(self, contract: str, reference: str, **arguments: Any) -> str:
        return self.app.submit(contract, {"reference": reference, **arguments}).operation_id

    def settled(self, *ids: str, seconds: float = 60.0) -> list[Operation]:
        """Wait until all of them are settled."""
        eventually(lambda: all(self.app.get(one).status in SETTLED for one in ids), seconds=seconds)
        return [self.app.get(one) for one in ids]

    def becomes(self, operation_id: str, *statuses: Status, seconds: float = 60.0) -> Operation:
        eventually(lambda: self.app.get(operation_id).status in statuses, seconds=seconds, pause_seconds=0.02)
        return self.app.get(operation_id)

    def marked(self, name: str, seconds: float = 60.0) -> str:
        """Wait for a mark of a handler; return its text."""
        eventually((self.marks / name).exists, seconds=seconds, pause_seconds=0.005)
        return (self.marks / name).read_text()

    def mark(self, name: str) -> None:
        (self.marks / name).touch()

    def lines(self, name: str) -> Counter[str]:
        """Count the lines that handlers wrote."""
        path = self.marks / name
        return Counter(path.read_text().split() if path.exists() else [])

    def refused(self) -> list[str]:
        """Return the contracts that some worker claims no more of for now."""
        with self.app.ledger.read() as transaction:
            return [name for worker in range(1, 10) for name in refused_by(transaction, worker)]

    def charges(self) -> dict[str, int]:
        """Count, at the shop's own ledger, what was really charged."""
        return client.counts(self.shop)["charges"]

    def story(self, operation_id: str) -> list[str]:
        return [event.type for event in self.app.events(operation_id)]

    def close(self) -> None:
        for service in self.services:
            service.kill()
        for child in self.children:
            child.__exit__()
        self.app.close()


@contextlib.contextmanager
def place(folder: Path, shop: str, **options: Any) -> Iterator[Place]:
    made = Place(folder, shop, **options)
    try:
        yield made
    finally:
        made.close()
