"""Which attempt may wait in the hands of a runner behind another, and who gets the next."""

from typing import Any

import pytest

from settled.execution.handing import ARGUMENTS_MAX, LAST_ENTRY_US, Share, deal, enter_by, fits_behind
from settled.execution.job import Job
from settled.execution.runner_end import RunnerEnd
from tests.lib.execution.inprocess import SECOND_US, make_job


def a_job(**changes: Any) -> Job:
    return make_job(**{"slot": 1, "claimed_boot_us": 1000 * SECOND_US, **changes})


FIRST, NOW_US = a_job(), 1000 * SECOND_US


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"slot": None}, False),  # a probe, or no recorder: nobody could take it back
        ({"claimed_boot_us": NOW_US + SECOND_US // 2}, True),
        ({"claimed_boot_us": NOW_US + SECOND_US}, False),  # it would lose more than a fiftieth of its time
        ({"claimed_boot_us": NOW_US - 1}, False),  # due before the deadline that is held
        ({"timeout_seconds": 29.9}, False),
        ({"timeout_seconds": 31.0}, False),
        ({"kill_grace_us": SECOND_US // 2}, False),
        ({"kill_grace_us": 3 * SECOND_US}, False),
        ({"enter_by_boot_us": NOW_US}, False),
        ({"enter_by_boot_us": NOW_US + 1}, True),
        ({"arguments": '"' + "x" * ARGUMENTS_MAX + '"'}, False),
    ],
)
def test_what_fits_behind_another_is_due_with_it_and_can_be_taken_back(changes: dict[str, Any], fits: bool) -> None:
    assert fits_behind(a_job(**changes), FIRST, NOW_US) is fits


def test_nothing_fits_behind_what_has_no_slot_or_is_due_soon() -> None:
    assert not fits_behind(a_job(), FIRST._replace(slot=None), NOW_US)
    assert fits_behind(a_job(), FIRST, FIRST.deadline_boot_us - LAST_ENTRY_US - 1)
    assert not fits_behind(a_job(), FIRST, FIRST.deadline_boot_us - LAST_ENTRY_US)


def test_none_that_waits_behind_another_is_entered_shortly_before_the_deadline_that_is_held() -> None:
    job = a_job()
    assert enter_by(job) == enter_by(job, job) == job.deadline_boot_us
    assert enter_by(job, FIRST) == FIRST.deadline_boot_us - LAST_ENTRY_US
    assert enter_by(job._replace(enter_by_boot_us=NOW_US), FIRST) == NOW_US


def a_share(in_hand: int, most: int) -> Share:
    runner = RunnerEnd(1, None, None, None)  # type: ignore[arg-type]  # its socket is not needed here
    jobs = [a_job() for _ in range(in_hand)]
    runner.job, _ = (jobs[0] if jobs else None), runner.behind.extend(jobs[1:])
    return Share(runner, most)


def test_each_in_its_turn_goes_to_the_runner_that_has_the_fewest_in_hand() -> None:
    busy, idle, rather_busy = a_share(3, 4), a_share(0, 4), a_share(2, 4)
    jobs = [a_job() for _ in range(8)]
    dealt = deal(jobs, [busy, idle, rather_busy], NOW_US)
    assert {id(share): len(share.jobs) for share in dealt} == {id(busy): 1, id(idle): 4, id(rather_busy): 2}
    assert idle.jobs[:2] == jobs[:2] and [share.count for share in dealt] == [4, 4, 4]
    assert sorted(job.row for share in dealt for job in share.jobs) == [job.row for job in jobs[:7]]


def test_an_idle_runner_gets_one_whatever_may_wait_and_the_first_that_fits_nowhere_ends_the_dealing() -> None:
    one, two = a_share(0, 1), a_share(0, 1)
    jobs = [a_job() for _ in range(3)]
    assert deal(jobs, [one, two], NOW_US) == [one, two]
    assert [one.jobs, two.jobs] == [[jobs[0]], [jobs[1]]]
    odd, plain = a_job(slot=None), a_job()
    assert deal([odd, plain], [a_share(1, 8)], NOW_US) == []
