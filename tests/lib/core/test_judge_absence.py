"""When "it is not there" proves that it never will be."""

from typing import Any

import pytest

from settled.core.decide_end import End
from settled.core.decide_evidence import judge_absence
from settled.core.evidence import ProbeResult
from settled.core.fold import Event
from settled.core.moment import SECOND_US, Moment
from settled.core.terms import Terms
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status, Weakness
from tests.lib.core.builders import DAY, HOUR, Life, absent, at, committed, dispatched, guaranteed, terms, unknown

GONE = FenceBasis.PROCESS_KILLED


def probed(**changes: Any) -> Terms:
    return terms(**{"has_probe": True, **changes})


def last(life: Life) -> Event:
    return life.events[-1]


@pytest.mark.promise("P37")
@pytest.mark.parametrize(("max_attempts", "then"), [(2, Status.PREPARED), (1, Status.REJECTED)], ids=["budget left", "budget spent"])
def test_a_counted_absence_closes_the_attempt_and_permits_one_dispatch_or_settles(max_attempts: int, then: Status) -> None:
    life = unknown(probed(max_attempts=max_attempts), End.RAISED, FenceBasis.RAISED).wait(1)
    assert life.probe(absent()) == [E.PROBE_ABSENT]
    assert (life.row.status, life.row.open_attempts, life.row.unfenced) == (then, 0, 0)
    assert [attempt.closed_by for attempt in life.case.history.attempts] == ["terminal_absence"]
    if then is Status.PREPARED:
        life.wait(1).dispatch()
        assert life.end(End.RETURNED, FenceBasis.RETURNED) == [E.RETURNED]
        assert (life.row.status, life.row.attempt) == (Status.CONFIRMED, 2)


@pytest.mark.promise("P37", "S47")
@pytest.mark.parametrize("basis", [GONE, FenceBasis.RAISED, FenceBasis.PROCESS_GONE, FenceBasis.HOST_REBOOTED])
@pytest.mark.parametrize(
    ("changes", "bounds"),
    [({"network_drain": 120}, 120), ({"network_drain": 30, "commit_horizon": 60, "read_lag": 10}, 100), ({}, 0)],
    ids=["default drain", "drain, horizon and lag", "no bounds"],
)
def test_an_absence_counts_only_if_started_strictly_after_fence_drain_horizon_and_lag(
    basis: FenceBasis, changes: dict[str, int], bounds: int
) -> None:
    case = unknown(probed(**changes), End.CRASHED, basis).case
    if bounds:
        assert judge_absence(case, at(bounds - 1)) == (Weakness.TOO_EARLY, SECOND_US)
    assert judge_absence(case, at(bounds)) == (Weakness.TOO_EARLY, 0)
    assert judge_absence(case, at(bounds + 1)).weakness is None


@pytest.mark.promise("S47")
def test_the_time_of_a_fence_is_that_of_the_reaping() -> None:
    life = dispatched(probed(network_drain=30))
    life.end(End.TIMED_OUT, GONE, fenced=at(7))  # recorded with the end, which came first
    assert judge_absence(life.case, at(37)).weakness is Weakness.TOO_EARLY
    assert judge_absence(life.case, at(38)).weakness is None


@pytest.mark.promise("S04")
@pytest.mark.parametrize(("started", "counts"), [(59, False), (60, False), (61, True)])
def test_an_absence_before_the_commit_horizon_is_kept_spends_no_budget_and_is_asked_again_after_it(started: int, counts: bool) -> None:
    life = unknown(probed(commit_horizon=60, max_attempts=3))
    life.now = at(started)
    kinds = life.probe(absent())
    if counts:
        assert kinds == [E.PROBE_ABSENT]
        return
    assert kinds == [E.PROBE_UNKNOWN]
    facts = last(life).data
    assert (facts["why"], facts["absence_observed"], facts["terminal"]) == (Weakness.TOO_EARLY, True, True)
    assert facts["due"] > at(60).wall_us
    assert (life.row.status, life.row.probes_spent, life.row.attempt) == (Status.OUTCOME_UNKNOWN, 0, 1)


@pytest.mark.promise("S04")
def test_a_probe_that_started_before_the_horizon_and_answered_after_it_does_not_count() -> None:
    life = unknown(probed(commit_horizon=60))
    life.now = at(90)
    assert life.probe(absent(), started=at(50)) == [E.PROBE_UNKNOWN]
    assert last(life).data["why"] == Weakness.TOO_EARLY


@pytest.mark.promise("D37", "D38", "D36")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (absent(healthy=False), Weakness.UNHEALTHY),
        (absent(terminal=False), Weakness.NOT_TERMINAL),
        (absent(reference="INV-7"), Weakness.REFERENCE_MISMATCH),
        (absent(reference=None), Weakness.REFERENCE_MISMATCH),
        (ProbeResult.not_committed(), Weakness.UNHEALTHY),
    ],
)
def test_an_absence_that_lacks_one_of_its_conditions_is_stored_as_the_weaker_thing_it_is(answer: ProbeResult, why: Weakness) -> None:
    life = unknown(probed(max_attempts=3)).wait(DAY)
    assert life.probe(answer) == [E.PROBE_UNKNOWN]
    facts = last(life).data
    assert (facts["why"], facts["absence_observed"], facts["answer"]) == (why, True, "not_committed")
    assert facts.get("healthy", False) is answer.healthy
    assert facts.get("terminal", False) is answer.terminal
    assert (life.row.status, life.row.attempt, life.row.probes_spent) == (Status.OUTCOME_UNKNOWN, 1, 1)


@pytest.mark.promise("P38")
def test_an_absence_while_the_handler_may_still_run_proves_nothing() -> None:
    life = unknown(probed(isolation="thread", probe_attempts_max=2, max_attempts=3), fence=None).wait(HOUR)
    assert life.probe(absent()) == [E.PROBE_UNKNOWN]
    assert last(life).data["why"] == Weakness.NO_FENCE
    assert life.probe(absent()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    assert life.row.reason == Reason.PROBE_BUDGET_SPENT


@pytest.mark.promise("P38")
def test_with_the_key_guarantee_an_absence_that_proves_nothing_leaves_the_key_retry() -> None:
    life = unknown(guaranteed(isolation="thread", has_probe=True), fence=None).wait(1)
    assert life.probe(absent()) == [E.PROBE_UNKNOWN, E.KEY_RETRY]


@pytest.mark.promise("D37")
def test_every_open_attempt_needs_its_own_fence_and_its_own_bounds() -> None:
    life = unknown(guaranteed(has_probe=True, isolation="thread"), fence=None).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(10).dispatch().wait(1)
    life.end(End.RAISED, FenceBasis.RAISED)
    assert judge_absence(life.case, at(HOUR)).weakness is Weakness.NO_FENCE  # the first has none
    life.late(1, End.RAISED, fence=FenceBasis.RAISED)
    fenced_at = life.now
    assert judge_absence(life.case, fenced_at).weakness is Weakness.TOO_EARLY
    assert judge_absence(life.case, life.wait(1).now).weakness is None


@pytest.mark.promise("S83", "D37")
@pytest.mark.parametrize(("stored", "current"), [(60, 0), (0, 60), (60, 60)])
def test_the_longer_of_the_stored_and_the_current_bounds_applies(stored: int, current: int) -> None:
    life = unknown(probed(commit_horizon=stored))
    life.current = probed(commit_horizon=current)
    assert judge_absence(life.case, at(60)).weakness is Weakness.TOO_EARLY
    assert judge_absence(life.case, at(61)).weakness is None


@pytest.mark.promise("S110")
@pytest.mark.parametrize(
    ("started", "counts"),
    [
        (at(5)._replace(wall_us=at(DAY).wall_us), False),
        (at(61)._replace(wall_us=at(-DAY).wall_us), True),
        (at(600), True),
        (Moment(at(DAY).wall_us, 40 * SECOND_US, "boot-2"), False),
        (Moment(at(DAY).wall_us, 61 * SECOND_US, "boot-2"), True),
    ],
)
def test_no_step_of_the_wall_clock_makes_an_absence_count(started: Moment, counts: bool) -> None:
    case = unknown(probed(commit_horizon=60)).case
    assert (judge_absence(case, started).weakness is None) is counts


@pytest.mark.promise("S61")
def test_after_a_reboot_an_absence_counts_from_the_boot_on() -> None:
    life = dispatched(probed(network_drain=120))
    life.now = Moment(at(HOUR).wall_us, 300 * SECOND_US, "boot-2")  # found five minutes after the boot
    life.end(End.LEASE_LOST, FenceBasis.HOST_REBOOTED, fenced=Moment(at(HOUR).wall_us, 0, "boot-2"))
    assert judge_absence(life.case, Moment(at(HOUR).wall_us, 120 * SECOND_US, "boot-2")).weakness is Weakness.TOO_EARLY
    assert judge_absence(life.case, Moment(at(HOUR).wall_us, 121 * SECOND_US, "boot-2")).weakness is None


@pytest.mark.promise("S108")
@pytest.mark.parametrize("end", [End.RAISED, End.TIMED_OUT, End.LEASE_LOST, End.CRASHED])
def test_what_was_handed_off_is_never_fenced_and_waits_from_its_recorded_end(end: End) -> None:
    handed = probed(dispatch="handoff", network_drain=30, commit_horizon=HOUR, read_lag=10)
    life = dispatched(handed).wait(20)
    life.end(end, FenceBasis.HOST_REBOOTED)
    assert life.case.history.attempts[0].fence is None
    assert life.row.unfenced == 0
    bounds = 30 + HOUR + 10
    assert judge_absence(life.case, at(20 + bounds)).weakness is Weakness.TOO_EARLY
    assert judge_absence(life.case, at(20 + bounds + 1)).weakness is None
    assert life.wait(1).probe(committed()) == [E.PROBE_COMMITTED]  # this counts at once


@pytest.mark.promise("S108")
@pytest.mark.parametrize("now_handed_off", [True, False])
def test_a_redeployment_of_a_hand_off_never_makes_its_absence_count_sooner(now_handed_off: bool) -> None:
    before, after = probed(dispatch="handoff", commit_horizon=60), probed(commit_horizon=60)
    if now_handed_off:
        before, after = after, before
    life = dispatched(before)
    life.current = after
    life.wait(20).end(End.RAISED, FenceBasis.RAISED)
    assert 0 <= life.row.unfenced <= life.row.open_attempts
    assert judge_absence(life.case, at(80)).weakness is Weakness.TOO_EARLY
    assert judge_absence(life.case, at(81)).weakness is None


@pytest.mark.promise("S113")
def test_an_absence_never_counts_for_a_restored_row() -> None:
    life = Life(probed(max_attempts=3)).restore()
    life.now = at(3650 * DAY)
    assert life.probe(absent()) == [E.PROBE_UNKNOWN]
    assert last(life).data["why"] == Weakness.NO_FENCE
    assert life.probe(committed()) == [E.PROBE_COMMITTED]
    assert life.row.status is Status.CONFIRMED


@pytest.mark.promise("S102", "D07")
@pytest.mark.parametrize(
    ("end", "facts", "changes"),
    [
        (End.RETURNED, {}, {"confirm_on": "probe"}),
        (End.RETURNED, {"postcondition": False}, {}),
        (End.RESULT_NOT_STORABLE, {}, {}),
    ],
    ids=["awaiting_probe", "postcondition_failed", "result_not_storable"],
)
def test_an_absence_after_a_return_contradicts_it(end: End, facts: dict[str, Any], changes: dict[str, Any]) -> None:
    def life() -> Life:
        one = dispatched(guaranteed(has_probe=True, **changes))
        one.end(end, FenceBasis.RETURNED, **facts)
        return one.wait(1)

    contradicted = life()
    assert contradicted.probe(absent()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    assert (contradicted.row.status, contradicted.row.reason) == (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE)
    weaker = life()
    assert weaker.probe(absent(healthy=False)) == [E.PROBE_UNKNOWN]
    confirmed = life()
    assert confirmed.probe(committed()) == [E.PROBE_COMMITTED]
    assert confirmed.row.status is Status.CONFIRMED


@pytest.mark.promise("S62")
def test_a_counted_absence_settles_a_kept_unknown_but_dispatches_nothing() -> None:
    life = unknown(terms(unknown_outcome="keep_unknown", max_attempts=3)).wait(1)
    assert life.row.reason == Reason.KEPT_UNKNOWN
    assert life.probe(absent()) == [E.PROBE_ABSENT]
    assert life.row.status is Status.REJECTED


@pytest.mark.promise("S137")
def test_a_counted_absence_after_a_stop_by_a_person_settles_and_dispatches_nothing() -> None:
    life = dispatched(probed(max_attempts=3))
    life.end(End.STOPPED, GONE, by_person=True)
    assert life.wait(1).probe(absent()) == [E.PROBE_ABSENT]
    assert life.row.status is Status.REJECTED
