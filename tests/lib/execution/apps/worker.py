"""A worker of its own process for the tests: start one attempt, tell what arrives, and wait to be killed.

`python worker.py CONTRACT ARGUMENTS TIMEOUT_SECONDS GRACE_SECONDS LOCK_FILE [CGROUP]`
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

from settled.clock import SystemClock, boot_us
from settled.core.words import Isolation
from settled.execution.job import Job, Kind
from settled.execution.process import ProcessExecutor

contract, arguments, timeout_seconds, grace_seconds, lock_file, *cgroup = sys.argv[1:]
lock = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)


def tell(message: dict[str, object]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


executor = ProcessExecutor(
    app_reference="effects:app",
    arrived=lambda report: tell({"end": report.end, "fence": report.fence}),
    clock=SystemClock().now,
    slots=1,
    lock_fd=lock,
    cgroup=Path(cgroup[0]) if cgroup else None,
)
# The clock starts when the runner is there, so that a slow machine does not eat the attempt's time.
warm = {"timeout_us": 60_000_000, "kill_grace_us": 1_000_000}
fixed = {
    "kind": Kind.HANDLER,
    "attempt": 1,
    "operation_id": "op",
    "idempotency_key": None,
    "provider_reference": None,
    "enter_by_boot_us": None,
    "announces_sending": False,
    "slot": None,
    "isolation": Isolation.PROCESS,
    "result_bytes_max": 1_048_576,
    "store_error_text": True,
    "error_text_max": 500,
}
executor.start(Job(**fixed, **warm, row=1, contract="echo", arguments="{}", claimed_boot_us=boot_us()))  # type: ignore[arg-type]
while executor.running:
    time.sleep(0.01)
claimed = boot_us()
times = {"timeout_us": int(float(timeout_seconds) * 1e6), "kill_grace_us": int(float(grace_seconds) * 1e6)}
tell({"claimed_boot_us": claimed})
executor.start(Job(**fixed, **times, row=2, contract=contract, arguments=arguments, claimed_boot_us=claimed))  # type: ignore[arg-type]
while True:
    time.sleep(60)
