"""Whether the key allows another dispatch: windows, clocks, isolation, redeployments, budget, history."""

from typing import Any

import pytest

from settled.core.decide_end import End
from settled.core.decide_unknown import decide_key_retry
from settled.core.guarantee import Guarantee, budget_left, key_verdict, unattended_allowed
from settled.core.moment import SECOND_US, Moment
from settled.core.words import FenceBasis
from tests.lib.core.builders import DAY, HOUR, KEY, Life, at, dispatched, guaranteed, terms

LAST = 23 * HOUR + 54 * 60 + 27  # of a 24 h window with margin 5 min, timeout 30 s, grace 3 s, drain 0


def windowed(**changes: Any) -> Any:
    return guaranteed(**{"window": DAY, "has_probe": True, **changes})


def unresolved(current: Any, fence: FenceBasis | None = FenceBasis.PROCESS_KILLED, **row: Any) -> Life:
    """Return an operation that timed out and waits for its probe, one minute after its first dispatch."""
    life = dispatched(current, **row).wait(60)
    life.end(End.TIMED_OUT, fence)
    return life


def verdict_at(life: Life, now: Moment) -> Guarantee:
    life.now = now
    return key_verdict(life.case).guarantee


@pytest.mark.promise("S05")
@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({}, LAST),
        ({"network_drain": 120}, 23 * HOUR + 52 * 60 + 27),
        ({"key_margin": 0}, 23 * HOUR + 59 * 60 + 27),
        ({"timeout": 60, "kill_grace": 10}, LAST - 37),
    ],
)
def test_the_key_holds_while_the_last_byte_falls_inside_the_window(changes: dict[str, int], last: int) -> None:
    life = unresolved(windowed(**changes))
    life.now = at(last)
    assert key_verdict(life.case) == (Guarantee.HOLDS, life.now.boot_us)
    life.now = at(last - 7)
    assert key_verdict(life.case) == (Guarantee.HOLDS, life.now.boot_us + 7 * SECOND_US)
    life.now = at(last + 1)
    assert key_verdict(life.case) == (Guarantee.WINDOW_OVER, None)


@pytest.mark.promise("S05")
def test_the_window_begins_with_the_first_dispatch_and_not_with_the_last() -> None:
    life = unresolved(windowed())
    life.now = at(12 * HOUR)
    life.happen([decide_key_retry(life.case)])
    life.wait(1).dispatch().wait(60)
    life.end(End.TIMED_OUT, FenceBasis.PROCESS_KILLED)
    assert [attempt.number for attempt in life.case.history.open_attempts] == [1, 2]
    assert verdict_at(life, at(LAST)) is Guarantee.HOLDS
    assert verdict_at(life, at(LAST + 1)) is Guarantee.WINDOW_OVER


@pytest.mark.promise("S05")
def test_a_window_without_a_stated_end_never_closes() -> None:
    life = unresolved(windowed(window=None))
    life.now = at(3650 * DAY)
    assert key_verdict(life.case) == (Guarantee.HOLDS, None)


@pytest.mark.promise("S112")
@pytest.mark.parametrize(
    ("now", "highest", "verdict"),
    [
        (at(DAY)._replace(wall_us=at(DAY - 2 * HOUR).wall_us), 0, Guarantee.WINDOW_OVER),  # set back two hours after it ended
        (at(DAY + 1), 0, Guarantee.WINDOW_OVER),  # suspended over its end: the boot clock went on
        (at(HOUR)._replace(wall_us=at(30 * DAY).wall_us), 0, Guarantee.HOLDS),
        (at(HOUR, boot_id="boot-2", boot_seconds=-999), 0, Guarantee.HOLDS),
        (at(DAY, boot_id="boot-2", boot_seconds=-999), 0, Guarantee.WINDOW_OVER),
        (at(HOUR, boot_id="boot-2"), at(HOUR).wall_us + 1, Guarantee.WINDOW_OVER),  # below the highest ever stored
    ],
)
def test_the_window_is_over_when_it_may_be_over(now: Moment, highest: int, verdict: Guarantee) -> None:
    life = unresolved(windowed())
    life.case_changes["wall_highest_us"] = highest
    assert verdict_at(life, now) is verdict


@pytest.mark.promise("S133")
@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_finite_window_is_never_trusted_where_code_cannot_be_killed(isolation: str) -> None:
    finite = unresolved(windowed(isolation=isolation), fence=None)
    assert key_verdict(finite.case).guarantee is Guarantee.ISOLATION
    endless = unresolved(windowed(isolation=isolation, window=None), fence=None)
    assert key_verdict(endless.case).guarantee is Guarantee.HOLDS


@pytest.mark.promise("S133", "S83")
def test_a_first_attempt_in_a_thread_is_not_forgotten_by_a_redeployment() -> None:
    life = unresolved(windowed(isolation="thread"), fence=None)
    life.current = windowed()
    assert key_verdict(life.case).guarantee is Guarantee.ISOLATION


@pytest.mark.promise("S83")
@pytest.mark.parametrize(
    ("stored", "current", "verdict"),
    [
        (windowed(), windowed(), Guarantee.HOLDS),
        (windowed(), terms(has_key=True, has_probe=True, max_attempts=3), Guarantee.NO_KEY),
        (terms(has_key=True, has_probe=True, max_attempts=3), windowed(), Guarantee.NO_KEY),
        (windowed(window=200), windowed(), Guarantee.WINDOW_OVER),
        (windowed(), windowed(window=200), Guarantee.WINDOW_OVER),
        (windowed(), None, Guarantee.NO_KEY),  # not registered here: never judged
        (windowed(max_attempts=3), windowed(max_attempts=1), Guarantee.NO_BUDGET),
    ],
)
def test_a_key_retry_must_be_allowed_by_the_terms_of_the_dispatch_and_the_current_ones(
    stored: Any, current: Any, verdict: Guarantee
) -> None:
    life = unresolved(stored)
    life.current = current
    assert key_verdict(life.case).guarantee is verdict


def test_no_key_retry_without_a_key_of_this_operation() -> None:
    assert key_verdict(unresolved(windowed(), provider_key=None).case).guarantee is Guarantee.NO_KEY
    assert key_verdict(unresolved(windowed(), provider_key=KEY).case).guarantee is Guarantee.HOLDS


@pytest.mark.parametrize(
    ("isolation", "dispatch", "fence", "verdict"),
    [
        ("process", "direct", None, Guarantee.WAIT_FOR_FENCE),
        ("process", "direct", FenceBasis.PROCESS_KILLED, Guarantee.HOLDS),
        ("process", "handoff", None, Guarantee.HOLDS),  # no fence is ever possible, and no process of ours sends
        ("thread", "direct", None, Guarantee.HOLDS),
    ],
)
def test_a_second_attempt_waits_until_the_processes_of_the_first_are_gone(
    isolation: str, dispatch: str, fence: FenceBasis | None, verdict: Guarantee
) -> None:
    life = unresolved(guaranteed(isolation=isolation, dispatch=dispatch, has_probe=True), fence=fence)
    assert key_verdict(life.case).guarantee is verdict


@pytest.mark.promise("S102")
@pytest.mark.parametrize(
    ("end", "facts", "changes"),
    [
        (End.RETURNED, {}, {"confirm_on": "probe"}),
        (End.RETURNED, {"postcondition": False}, {}),
        (End.RESULT_NOT_STORABLE, {}, {}),
    ],
)
def test_nothing_is_repeated_by_the_key_after_a_return(end: End, facts: dict[str, Any], changes: dict[str, Any]) -> None:
    life = dispatched(guaranteed(has_probe=True, **changes))
    life.end(end, FenceBasis.RETURNED, **facts)
    assert key_verdict(life.case).guarantee is Guarantee.AFTER_RETURN


@pytest.mark.promise("S102")
def test_nothing_is_repeated_by_the_key_after_a_late_return_that_does_not_confirm() -> None:
    life = unresolved(windowed())
    life.late(1, End.RETURNED, postcondition=False)
    assert key_verdict(life.case).guarantee is Guarantee.AFTER_RETURN


@pytest.mark.promise("S137")
def test_nothing_is_dispatched_unattended_after_a_person_has_stopped_it() -> None:
    life = dispatched(windowed())
    life.end(End.STOPPED, FenceBasis.PROCESS_KILLED, by_person=True)
    assert key_verdict(life.case).guarantee is Guarantee.NOT_UNATTENDED
    shut_down = dispatched(windowed())
    shut_down.end(End.STOPPED, FenceBasis.PROCESS_KILLED, interruption="shutdown")
    assert unattended_allowed(shut_down.case)


@pytest.mark.promise("S113")
def test_nothing_is_dispatched_by_the_key_after_a_restore() -> None:
    assert key_verdict(unresolved(windowed()).restore().case).guarantee is Guarantee.NOT_UNATTENDED
    assert key_verdict(Life(windowed()).restore().case).guarantee is Guarantee.NOT_UNATTENDED


@pytest.mark.promise("S51")
def test_provably_unsent_attempts_spend_no_budget() -> None:
    life = Life(terms(max_attempts=1, not_sent_attempts_max=3))
    for end in (End.NEVER_ENTERED, End.NOT_SENT):
        life.dispatch().end(end, FenceBasis.NEVER_ENTERED)
        assert budget_left(life.case)
    life.dispatch().end(End.TIMED_OUT, FenceBasis.PROCESS_KILLED)
    assert not budget_left(life.case)
    assert life.row.attempt == 3


def test_what_was_never_sent_spends_its_own_budget_and_no_more() -> None:
    life = dispatched(guaranteed(not_sent_attempts_max=2))
    life.end(End.NOT_SENT, FenceBasis.RAISED)
    assert budget_left(life.case)
    life.wait(60).dispatch().end(End.NOT_SENT, FenceBasis.RAISED)
    assert not budget_left(life.case) and life.case.history.spent_attempts() == 0


def test_an_attempt_is_waited_for_by_the_isolation_that_it_was_dispatched_in() -> None:
    life = unresolved(windowed(window=None), fence=None)
    life.current = windowed(window=None, isolation="thread")
    assert key_verdict(life.case) == (Guarantee.WAIT_FOR_FENCE, None)


def test_waiting_for_a_fence_does_not_forget_when_the_window_ends() -> None:
    life = unresolved(windowed(), fence=None)
    life.now = at(LAST - 5)
    assert key_verdict(life.case) == (Guarantee.WAIT_FOR_FENCE, life.now.boot_us + 5 * SECOND_US)
