"""How many attempts may wait for a runner."""

from settled.execution.pace import EVEN_AFTER, EVEN_AT_FIRST, LONG_US, SHORT_US, WAITING_PER_RUNNER_MAX, WAITS_US, Pace


def test_nothing_waits_before_anything_is_known() -> None:
    assert Pace().may_wait(4, []) == 0


def test_very_short_attempts_may_wait_up_to_the_limit() -> None:
    pace = Pace()
    pace.ran(100)
    assert pace.may_wait(4, [100, 200]) == 4 * WAITING_PER_RUNNER_MAX


def test_one_long_attempt_ends_the_waiting_at_once_and_many_short_ones_bring_it_back_slowly() -> None:
    pace = Pace()
    pace.ran(300)
    pace.ran(SHORT_US * 10)
    assert pace.may_wait(4, []) == 0
    waits = []
    for _ in range(120):
        pace.ran(100)
        waits.append(pace.may_wait(1, []))
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == WAITING_PER_RUNNER_MAX


def test_one_that_a_busy_machine_held_up_for_a_moment_does_not_speak_for_all() -> None:
    pace = Pace()
    for _ in range(100):
        pace.ran(100)
    pace.ran(SHORT_US // 2)
    assert pace.may_wait(1, []) >= 10
    for _ in range(20):
        pace.ran(SHORT_US // 2)
    assert pace.may_wait(1, []) == 2 * WAITS_US // SHORT_US


def test_nothing_waits_while_an_attempt_under_way_is_long() -> None:
    pace = Pace()
    pace.ran(300)
    assert pace.may_wait(4, [SHORT_US + 1]) == 0


def test_the_shorter_the_attempts_the_more_may_wait() -> None:
    pace = Pace()
    pace.ran(SHORT_US // 2)
    assert pace.may_wait(2, []) == 2 * 2 * WAITS_US // SHORT_US
    pace = Pace()
    pace.ran(SHORT_US)
    assert pace.may_wait(2, []) == 2 * WAITS_US // SHORT_US, "two in a row: nobody is idle until the next commit"


def test_behind_one_certain_attempt_others_wait_only_in_even_company() -> None:
    pace = Pace()
    for _ in range(EVEN_AT_FIRST - 1):
        pace.ran(100)
    assert pace.may_wait_in_hand([]) == 0 < pace.may_wait(1, [])
    pace.ran(100)
    assert pace.may_wait_in_hand([]) > 0
    pace.ran(LONG_US + 1)
    for _ in range(EVEN_AFTER - 1):
        pace.ran(100)
    assert pace.may_wait_in_hand([]) == 0 < pace.may_wait(1, [])
    pace.ran(100)
    assert pace.may_wait_in_hand([SHORT_US]) > 0 == pace.may_wait_in_hand([SHORT_US + 1])
