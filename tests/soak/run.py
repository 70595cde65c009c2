"""Load for a long time while workers are killed, frozen and stopped, the disk is filled, and somebody reads for long.

    python -m tests.soak.run [--seconds 60] [--rate 12] [--seed N] [--output FILE]

In the end the destination's own ledger is counted: nothing doubled, nothing lost, nothing stuck, no outcome that it contradicts.
One worker is never ended, so that its memory can be compared over the whole time. The figures say nothing about another machine.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from settled import App, Status
from settled.clock import wall_us
from settled.core.errors import LedgerUnavailableError, OperationNotFoundError
from settled.core.words import SETTLED
from settled.store.audit import verify
from settled.store.creation import create_ledger
from settled_cli.demo.launch import running_shop
from tests.lib.children import Child
from tests.soak.small_disk import Disk, small_disk
from tests.worker.apps import effects
from tests.worker.services import LEASE, Place, Service

SETTLE_SECONDS = 180.0
SAMPLE_SECONDS = 2.0
SETTINGS = {
    **LEASE,
    "SETTLED_LOGS__LEVEL": "warning",
    "SETTLED_WORKER__SLOTS": "8",
    "SETTLED_WORKER__PROCESS_RUNNERS": "2",
    "SETTLED_WORKER__DRAIN_SECONDS": "2",
    "SETTLED_SWEEPS__CHECKPOINT__EVERY_SECONDS": "2",
    "SETTLED_SWEEPS__RETENTION__EVERY_SECONDS": "5",
    "SETTLED_RETENTION__PAYLOAD_SECONDS": "15",
    **{
        f"SETTLED_CONTRACTS__CHARGE_{isolation}__{name}": value
        for isolation in ("PROCESS", "THREAD")
        for name, value in (("PROBE_INTERVAL_SECONDS", "0.5"), ("PROBE_ATTEMPTS_MAX", "100000"))
    },
}
READER = """
import sys
import pysqlite3
connection = pysqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM operation").fetchone()
print("reads", flush=True)
sys.stdin.readline()
"""


class Soak:
    """One run. `chance` decides everything that is random in it; what the system makes of it is not repeatable."""

    def __init__(self, folder: Path, disk: Disk, shop: str, seed: int, rate: float) -> None:
        self.disk, self.rate, self.chance = disk, rate, random.Random(seed)
        self.place = Place(folder, shop)
        self.place.app.close()
        self.place.database = disk.folder / "settled.db"
        self.place.environ["SETTLED_DATABASE"] = str(self.place.database)
        create_ledger(self.place.database, at_us=wall_us())
        self.app = self.place.app = App(self.place.database)
        effects.declare(self.app)
        self.ids: dict[str, str] = {}
        self.owed: list[tuple[str, dict[str, Any]]] = []
        self.done = Counter[str]()
        self.samples: list[dict[str, int]] = []
        self.stopped = threading.Event()

    # ------------------------------------------------------------------ the load

    def load(self) -> None:
        """Submit at the rate; what the store does not take is submitted again, which is safe."""
        number = 0
        while not self.stopped.wait(1 / self.rate):
            number += 1
            reference = f"s-{os.getpid()}-{number}"
            arguments = {"reference": reference, "pause": round(self.chance.random() * 0.2, 3), "pad": "x" * 500}
            self.owed.append((self.chance.choice(["charge_process", "charge_thread"]), arguments))
            self.submit_owed()

    def submit_owed(self) -> None:
        """Submit what is owed until the store refuses."""
        while self.owed:
            contract, arguments = self.owed[0]
            try:
                self.ids[self.app.submit(contract, arguments).operation_id] = arguments["reference"]
            except LedgerUnavailableError:
                self.done["submits refused and repeated"] += 1
                return
            self.owed.pop(0)

    # ------------------------------------------------------------------ what goes wrong

    def trouble(self) -> None:
        """Do one thing that operators fear."""
        kinds: list[Callable[[], None]] = [self.kill, self.kill, self.freeze, self.freeze, self.stop, self.read_long]
        kinds += [self.fill] * 2 if self.disk.is_small else []
        kind = self.chance.choice(kinds)
        self.done[kind.__name__] += 1
        kind()

    def kill(self) -> None:
        """SIGKILL: the worker with all that it started, or the worker alone."""
        if self.chance.random() < 0.5:
            self.other.kill()
        else:
            self.other.signal(signal.SIGKILL)
            self.other.process.wait(20)
        self.other = self.start()

    def freeze(self) -> None:
        """SIGSTOP for longer than a lease, then SIGCONT."""
        one = self.chance.choice([self.steady, self.other])
        one.signal(signal.SIGSTOP)
        self.rest(1.5, 4)
        one.signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: it drains and leaves."""
        self.other.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.other.ended(60)
        self.other.kill()
        self.other = self.start()

    def fill(self) -> None:
        """Not a byte is left on the ledger's disk for a while."""
        self.disk.fill()
        self.rest(2, 4)
        self.disk.free()

    def read_long(self) -> None:
        """A reader that keeps its snapshot, so that the log cannot start anew."""
        with Child(READER, self.place.database) as child:
            child.hear(seconds=60)
            self.rest(3, 6)

    def rest(self, least: float, most: float) -> None:
        self.stopped.wait(self.chance.uniform(least, most))

    def start(self) -> Service:
        """Start a worker; on a full disk it may need more than one try, as under a service manager."""
        while True:
            worker = self.place.worker(settings=SETTINGS)
            came_true(partial(self.has_begun, worker), seconds=60)
            if worker.process.poll() is None:
                return worker
            self.done["starts repeated"] += 1
            self.stopped.wait(0.5)

    def has_begun(self, worker: Service) -> bool:
        """Whether it holds an incarnation, or has ended already."""
        if worker.process.poll() is not None:
            return True
        with suppress(LedgerUnavailableError), self.app.ledger.read() as transaction:
            found = transaction.cursor.execute("SELECT 1 FROM worker WHERE pid = ? AND ended_us IS NULL", (worker.pid,)).fetchone()
            return found is not None
        return False

    # ------------------------------------------------------------------ figures

    def watch(self) -> None:
        """Note memory and file sizes now and then."""
        while not self.stopped.wait(SAMPLE_SECONDS):
            with suppress(OSError):
                self.samples.append(self.sample())

    def sample(self) -> dict[str, int]:
        database = self.place.database
        files = {suffix: Path(f"{database}{suffix}") for suffix in ("", "-wal")}
        return {
            "worker_kib": resident_kib(self.steady.pid),
            "submitter_kib": resident_kib(os.getpid()),
            "database_bytes": files[""].stat().st_size,
            "log_bytes": files["-wal"].stat().st_size if files["-wal"].exists() else 0,
            "run_files": len(os.listdir(f"{database}.run")),
            "operations": len(self.ids),
        }

    def run(self, seconds: float) -> dict[str, Any]:
        """Work for so long, then let everything come to rest and count."""
        self.steady, self.other = self.start(), self.start()
        threads = [threading.Thread(target=each, daemon=True) for each in (self.load, self.watch)]
        for one in threads:
            one.start()
        until = time.monotonic() + seconds
        told = time.monotonic()
        while time.monotonic() < until:
            self.trouble()
            self.rest(0.5, 2)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                say(f"{until - told:6.0f} s left, {len(self.ids)} submitted, {dict(self.done)}")
        self.stopped.set()
        for one in threads:
            one.join(30)
        self.disk.free()
        self.submit_owed()
        say(f"load ended with {len(self.ids)} operations; waiting until all are settled")
        came_true(lambda: not self.unsettled(), seconds=SETTLE_SECONDS)
        return self.counted()

    def unsettled(self) -> int:
        """Count what waits, for whatever: 1 where the store does not answer."""
        with suppress(LedgerUnavailableError):
            return self.count_unsettled()
        return 1

    def count_unsettled(self) -> int:
        with self.app.ledger.read() as transaction:
            settled = ", ".join(f"'{status.value}'" for status in SETTLED)
            return int(transaction.cursor.execute(f"SELECT count(*) FROM operation WHERE status NOT IN ({settled})").fetchone()[0])

    def counted(self) -> dict[str, Any]:
        """Compare every operation with what the destination really has."""
        charges = self.place.charges()
        found: dict[str, list[str]] = {name: [] for name in ("doubled", "lost", "stuck", "claimed_and_not_done", "denied_and_done")}
        statuses: Counter[str] = Counter()
        for operation_id, reference in self.ids.items():
            try:
                operation = self.app.get(operation_id)
            except OperationNotFoundError:
                found["lost"].append(operation_id)
                continue
            statuses[operation.status.value] += 1
            times = charges.get(reference, 0)
            wrong = {
                "doubled": times > 1,
                "stuck": operation.status not in SETTLED,
                "claimed_and_not_done": operation.status is Status.CONFIRMED and times == 0,
                "denied_and_done": operation.status in (Status.REJECTED, Status.CANCELLED) and times > 0,
            }
            for name, is_wrong in wrong.items():
                if is_wrong:
                    found[name].append(operation_id)
        with self.app.ledger.read() as transaction:
            attempts = int(transaction.cursor.execute("SELECT sum(attempt) FROM operation").fetchone()[0] or 0)
            unknown = transaction.cursor.execute("SELECT count(*) FROM event WHERE status = 'outcome_unknown'").fetchone()[0]
        return {
            "disk": self.disk.kind or "not small: it could not be filled",
            "operations": len(self.ids),
            "statuses": dict(statuses),
            "charges": sum(charges.values()),
            "attempts": attempts,
            "events_of_unknown_outcomes": unknown,
            "troubles": dict(self.done),
            "wrong": {name: ids[:20] for name, ids in found.items() if ids},
            "damage": [str(one) for one in verify(self.app.ledger)],
            "sizes": trends(self.samples),
        }


def trends(samples: list[dict[str, int]]) -> dict[str, Any]:
    """Compare the first and the last quarter of the samples, the start of the run left out."""
    kept = samples[len(samples) // 10 :]
    quarter = max(1, len(kept) // 4)
    first, last = kept[:quarter], kept[-quarter:]
    if not first or not last:
        return {}
    mean = {name: (sum(one[name] for one in first) // len(first), sum(one[name] for one in last) // len(last)) for name in kept[0]}
    operations = max(1, mean["operations"][1] - mean["operations"][0])
    return {
        **{name: {"first_quarter": a, "last_quarter": b, "most": max(one[name] for one in kept)} for name, (a, b) in mean.items()},
        "database_bytes_for_each_operation": (mean["database_bytes"][1] - mean["database_bytes"][0]) // operations,
    }


def resident_kib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def soak(folder: Path, *, seconds: float, seed: int, rate: float) -> dict[str, Any]:
    """Run once in `folder`; return the summary."""
    with small_disk(folder, 48 + int(seconds * 0.15)) as disk, running_shop(folder / "charges.jsonl") as shop:
        say(f"seed {seed}, the ledger's disk: {disk.kind or 'an ordinary folder'}")
        run = Soak(folder, disk, shop.url, seed, rate)
        try:
            return run.run(seconds)
        finally:
            run.stopped.set()
            run.disk.free()
            for service in run.place.services:
                with suppress(ProcessLookupError):
                    service.signal(signal.SIGCONT)
            run.place.close()


def came_true(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Wait for a condition, and go on without it: what did not come true is counted in the end."""
    until = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return true


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=12.0, help="operations submitted in a second")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--output", type=Path, help="write the summary there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="settled-soak-") as folder:
        summary = soak(Path(folder), seconds=options.seconds, seed=options.seed, rate=options.rate)
    text = json.dumps({"seed": options.seed, "seconds": options.seconds, **summary}, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 1 if summary["wrong"] or summary["damage"] else 0


if __name__ == "__main__":
    sys.exit(main())
