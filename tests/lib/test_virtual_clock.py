"""The clock of tests keeps the relations that the clocks of a machine have."""

import pytest

from settled.clock import Clock
from settled.testing import VirtualClock


def test_time_that_passes_moves_all_clocks_and_a_suspend_all_but_the_monotonic_one() -> None:
    clock: Clock = VirtualClock()
    assert isinstance(clock, VirtualClock)
    before, monotonic_us = clock.now(), clock.monotonic_us()
    clock.advance(1.5)
    clock.suspend(10)
    after = clock.now()
    assert (after.wall_us - before.wall_us, after.boot_us - before.boot_us) == (11_500_000, 11_500_000)
    assert clock.monotonic_us() - monotonic_us == 1_500_000 and after.boot_id == before.boot_id


def test_a_step_moves_the_wall_clock_alone_and_time_never_runs_back() -> None:
    clock = VirtualClock()
    before = clock.now()
    after = clock.step_wall(-86_400)
    assert after == before._replace(wall_us=before.wall_us - 86_400_000_000)
    with pytest.raises(ValueError, match="does not run back"):
        clock.advance(-1)


def test_a_reboot_starts_the_boot_clock_anew_under_another_id() -> None:
    clock = VirtualClock()
    before = clock.now()
    first, second = clock.reboot(away_seconds=60), clock.reboot()
    assert first.boot_us == 0 and first.wall_us == before.wall_us + 60_000_000 and clock.monotonic_us() == 0
    assert len({before.boot_id, first.boot_id, second.boot_id}) == 3 and len(first.boot_id) == len(before.boot_id) == 12
