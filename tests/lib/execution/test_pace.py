"""How many attempts may wait for a runner."""

from settled.execution.pace import SHORT_US, WAITING_PER_RUNNER_MAX, Pace


def test_nothing_waits_before_anything_is_known() -> None:
    assert Pace().may_wait(4, []) == 0


def test_very_short_attempts_may_wait_up_to_the_limit() -> None:
    pace = Pace()
    pace.ran(300)
    assert pace.may_wait(4, [100, 200]) == 4 * WAITING_PER_RUNNER_MAX


def test_one_long_attempt_ends_the_waiting_at_once_and_many_short_ones_bring_it_back_slowly() -> None:
    pace = Pace()
    pace.ran(300)
    pace.ran(SHORT_US * 10)
    assert pace.may_wait(4, []) == 0
    waits = []
    for _ in range(60):
        pace.ran(300)
        waits.append(pace.may_wait(1, []))
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == WAITING_PER_RUNNER_MAX


def test_nothing_waits_while_an_attempt_under_way_is_long() -> None:
    pace = Pace()
    pace.ran(300)
    assert pace.may_wait(4, [SHORT_US + 1]) == 0


def test_the_shorter_the_attempts_the_more_may_wait() -> None:
    pace = Pace()
    pace.ran(SHORT_US // 2)
    assert pace.may_wait(2, []) == 4
