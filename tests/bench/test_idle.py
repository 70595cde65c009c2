"""What a worker costs while it has nothing to do."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.measuring import cpu_seconds
from tests.bench.workloads import Size, a_stage, idle
from tests.conftest import eventually

CORE_PERCENT_MAX = 5.0  # the aim is 1; a slow and crowded machine must not fail this, a worker that spins must


def test_an_idle_worker_takes_next_to_no_processor(tmp_path: Path) -> None:
    with a_stage("settled", tmp_path) as stage:
        figures = idle(stage, Size(idle_seconds=4.0))
    assert 0.0 <= figures["cpu_percent"] < CORE_PERCENT_MAX


def test_the_meter_sees_a_process_that_spins() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        began = time.monotonic()
        eventually(lambda: cpu_seconds(spinning.pid) > 0.2, seconds=60)
        assert cpu_seconds(os.getpid()) >= cpu_seconds(spinning.pid), "descendants belong to the sum"
        assert cpu_seconds(spinning.pid) <= time.monotonic() - began + 0.5
    finally:
        spinning.kill()
        spinning.wait()
    assert cpu_seconds(spinning.pid) == 0.0
