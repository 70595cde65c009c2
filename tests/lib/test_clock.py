import subprocess
import sys
from pathlib import Path

import pytest
import time_machine

from settled.clock import BOOT_ID_DIGITS, Clock, SystemClock, boot_id_short, boot_us, monotonic_us, wall_us

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_a_moment_is_taken_on_all_three_clocks() -> None:
    clock: Clock = SystemClock()
    before = (wall_us(), boot_us())
    moment = clock.now()
    after = (wall_us(), boot_us())
    assert before[0] <= moment.wall_us <= after[0]
    assert before[1] <= moment.boot_us <= after[1]
    assert moment.boot_id == boot_id_short()


@linux
def test_boot_time_is_what_the_kernel_calls_uptime() -> None:
    before = boot_us()
    uptime_us = float(Path("/proc/uptime").read_text().split()[0]) * 1e6
    assert before - 20_000 <= uptime_us <= boot_us() + 20_000


@linux
def test_the_boot_id_is_the_same_in_every_process_of_one_boot() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "from settled.clock import boot_id_short; print(boot_id_short())"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(sys.modules["settled.clock"].__file__ or "").parents[1])},
    )
    assert asked.stdout.strip() == boot_id_short()
    assert len(boot_id_short()) == BOOT_ID_DIGITS
    assert Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").startswith(boot_id_short())


def test_a_wall_clock_that_is_moved_moves_neither_of_the_others() -> None:
    clock = SystemClock()
    before = clock.now()
    monotonic_before_us = clock.monotonic_us()
    with time_machine.travel("2040-01-01", tick=True):
        moved = clock.now()
        monotonic_moved_us = clock.monotonic_us()
    assert moved.wall_us - before.wall_us > 365 * 86_400 * 1_000_000
    assert 0 <= moved.boot_us - before.boot_us < 60_000_000
    assert 0 <= monotonic_moved_us - monotonic_before_us < 60_000_000
    assert monotonic_us() >= monotonic_moved_us
