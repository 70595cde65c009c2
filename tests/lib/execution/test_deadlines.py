"""The one thread that keeps deadlines: it looks when one is due, and never spins."""

from collections.abc import Iterator

import pytest

from settled.clock import boot_us
from settled.execution.deadlines import NEVER_US, Deadlines
from tests.conftest import eventually


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    made = Deadlines()
    yield made
    made.close()


def test_it_looks_once_for_each_deadline_and_sleeps_in_between(deadlines: Deadlines) -> None:
    looks: list[int] = []
    first_us, second_us = boot_us(), boot_us() + 300_000

    def expire(now_us: int) -> int:
        looks.append(now_us)
        return second_us if now_us < second_us else NEVER_US

    deadlines.register(expire)
    deadlines.notice(first_us)
    assert eventually(lambda: looks and looks[-1] >= second_us)
    assert len(looks) == 2


def test_a_shorter_deadline_wakes_it_earlier(deadlines: Deadlines) -> None:
    looks: list[int] = []

    def expire(now_us: int) -> int:
        looks.append(now_us)
        return now_us + 3_600_000_000

    deadlines.register(expire)
    for look in range(1, 6):
        due_us = boot_us() + 50_000
        deadlines.notice(due_us)
        assert eventually(lambda look=look: len(looks) == look, seconds=2)
        assert looks[-1] >= due_us


def test_a_fault_in_one_executor_delays_no_other(deadlines: Deadlines) -> None:
    looks: list[int] = []

    def broken(now_us: int) -> int:
        raise RuntimeError("broken")

    deadlines.register(broken)
    deadlines.register(lambda now_us: looks.append(now_us) or NEVER_US)  # type: ignore[func-returns-value]
    deadlines.notice(boot_us())
    assert eventually(lambda: looks)
