"""When a lease is lost, and what is proved about its owner."""

import pytest

from settled.core.decide_lease import Examined, Looks, judge_owner, lease_is_lost, look
from settled.core.moment import SECOND_US
from settled.core.words import FenceBasis

LEASE_SECONDS = 30.0


def looks_at(*seen: tuple[int, float]) -> tuple[Looks, int]:
    """Return what an observer knows after looks at a counter at seconds of its own clock, and the time of the last."""
    known: Looks | None = None
    for counter, seconds in seen:
        known = look(known, counter, round(seconds * SECOND_US))
    assert known is not None
    return known, round(seen[-1][1] * SECOND_US)


@pytest.mark.promise("X2", "D50")
@pytest.mark.parametrize(
    ("seen", "lost"),
    [
        ([(5, 0), (5, 15), (5, 30)], True),
        ([(5, 0), (5, 15), (5, 29)], False),  # a second short of the lease
        ([(5, 0), (5, 30)], False),  # two looks only: the observer may have slept
        ([(5, 0), (5, 3600)], False),
        ([(5, 0)], False),
        ([(5, 0), (5, 15), (6, 30)], False),  # it beat
        ([(5, 0), (5, 15), (6, 30), (6, 45), (6, 60)], True),
        ([(5, 0), (5, 15), (6, 30), (6, 45), (6, 59)], False),  # a new lease since that beat
        ([(5, 0), (6, 15), (5, 30), (5, 45), (5, 60)], True),  # a counter that fell was moved too
    ],
)
def test_a_lease_is_lost_after_a_whole_lease_and_three_looks_without_a_beat(seen: list[tuple[int, float]], lost: bool) -> None:
    known, now_us = looks_at(*seen)
    assert lease_is_lost(known, now_us, LEASE_SECONDS, 3) is lost


@pytest.mark.parametrize(
    ("same_boot", "lock_is_free", "marked", "cgroup_empty", "examined"),
    [
        (True, True, 0, None, Examined(True, FenceBasis.PROCESS_GONE)),  # no cgroup delegated: lock and mark suffice
        (True, True, 0, True, Examined(True, FenceBasis.PROCESS_GONE)),
        (True, True, 0, False, Examined(True, None)),
        (True, True, 1, True, Examined(True, None)),
        (True, True, None, True, Examined(True, None)),  # environments unreadable
        (True, False, 0, True, Examined(False, None)),
        (True, None, 0, True, Examined(False, None)),  # a missing or other lock file proves nothing
        (False, True, 0, False, Examined(True, FenceBasis.HOST_REBOOTED)),
        (False, True, None, None, Examined(True, FenceBasis.HOST_REBOOTED)),
        (False, None, None, None, Examined(True, FenceBasis.HOST_REBOOTED)),
        (False, False, None, None, Examined(False, None)),  # another boot ID is shown to it, but its lock has survived
        (False, True, 3, None, Examined(True, None)),  # … or a process that carries its mark
    ],
)
def test_an_owner_is_judged_by_its_lock_and_what_it_left(
    same_boot: bool, lock_is_free: bool | None, marked: int | None, cgroup_empty: bool | None, examined: Examined
) -> None:
    found = judge_owner(same_boot=same_boot, lock_is_free=lock_is_free, marked_processes=marked, handed_cgroup_empty=cgroup_empty)
    assert found == examined
