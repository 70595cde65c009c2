"""What people decide: each decision is one audited write, bound to what the person saw, and refused where it cannot be true."""

import getpass
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from settled import (
    App,
    Effect,
    EffectRejected,
    Operation,
    OperationNotFoundError,
    Outcome,
    ProbeResult,
    RetryPolicy,
    Status,
    TransitionRefusedError,
)
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, guaranteed, seen
from tests.lib.store.ledgers import another_program

FACTS: dict[str, Any] = {"actor": "ana", "reason": "not in the bank's list", "evidence_reference": "stmt-1"}


VERBS = ("confirm", "reject", "authorize_retry")


ABSENT = ProbeResult.not_committed(terminal=True, healthy=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


class Counted:
    """A handler that fails the first time in a way that proves nothing, and returns from then on."""

    def __init__(self, failures: int = 1) -> None:
        self.count, self.failures = 0, failures

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self.failures:
            raise ConnectionResetError
        return "done"


def quarantined(bench: Bench, handler: Callable[..., Any] | None = None, **terms: Any) -> tuple[Effect, Operation]:
    effect = bench.effect(handler or Counted(), **terms)
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.get(OPERATION_ID)
    assert op.status is Status.QUARANTINED, op
    return effect, op


def decide(app: App, verb: str, version: int, **more: Any) -> Operation:
    decided: Operation = getattr(app, verb)(OPERATION_ID, **FACTS, expected_version=version, **more)
    return decided


@pytest.mark.promise("P43")
def test_a_quarantine_is_never_left_for_a_dispatch_by_itself(bench: Bench) -> None:
    handler, answers = Counted(), [ProbeResult.unknown(), ABSENT, ProbeResult.committed(output=1)]
    effect, _ = quarantined(bench, handler, **guaranteed(1))
    for _ in range(3):
        effect.submit(ARGUMENTS)
        effect.execute(ARGUMENTS)
        worker = bench.worker()
        worker.turn()
        worker.reconcile()
        worker.leases()
        worker.sweeper.escalate()
        bench.clock.advance(90_000)
    assert (handler.count, bench.types()) == (1, ["submitted", "dispatched", "raised", "quarantined"])
    effect.contract.probe(lambda: answers.pop(0))
    assert bench.app.reconcile(OPERATION_ID).status is Status.QUARANTINED
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.attempt_records[0]["closed_by"]) == (Status.QUARANTINED, "open")  # an absence closes nothing here
    assert bench.app.reconcile(OPERATION_ID).status is Status.CONFIRMED
    assert handler.count == 1


@pytest.mark.promise("S62", part="no escalation channel is shown here")
def test_kept_unknown_stays_unknown_visibly_and_late_evidence_or_a_person_settles_it(bench: Bench) -> None:
    handler = Counted()
    terms: dict[str, Any] = {"unknown_outcome": "keep_unknown", "outcome_probe": lambda: ProbeResult.unknown(), "probe_attempts_max": 1}
    effect = bench.effect(handler, **terms)
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.reason, op.outcome) == (Status.OUTCOME_UNKNOWN, "kept_unknown", Outcome.UNKNOWN)
    bench.clock.advance(90_000)
    worker = bench.worker()
    worker.reconcile()
    worker.sweeper.escalate()
    assert (worker.turn(), handler.count) == (0, 1)
    assert [one.operation_id for one in bench.app.list(status="outcome_unknown")] == [OPERATION_ID]
    op = bench.app.get(OPERATION_ID)
    assert op.reason == "kept_unknown"
    assert decide(bench.app, "authorize_retry", op.version).status is Status.PREPARED
    worker.turn()
    assert bench.app.get(OPERATION_ID).status is Status.CONFIRMED
    other = bench.effect(Counted(), name="other", **terms)
    bench.app.execute(other, ARGUMENTS, operation_id="other")
    bench.app.reconcile("other")
    late = bench.app.add_evidence(operation_id="other", source="webhook", result=ProbeResult.committed())
    assert late is not None
    assert late.status is Status.CONFIRMED


@pytest.mark.promise("P49", part="the library; the exit code is shown with the command line")
@pytest.mark.parametrize("verb", VERBS)
def test_only_what_waits_for_a_person_is_decided_by_one(bench: Bench, verb: str) -> None:
    gate, inside = bench.gate(), threading.Event()

    def handler(arguments: dict[str, Any]) -> None:
        if arguments["do"] == "hang":
            inside.set()
            gate.wait()
        if arguments["do"] == "reject":
            raise EffectRejected("no")

    effect = bench.effect(handler, operation_id=lambda a: a["do"])
    runner = threading.Thread(target=effect.execute, args=({"do": "hang"},))
    runner.start()
    inside.wait()
    effect.execute({"do": "return"})
    effect.execute({"do": "reject"})
    effect.submit({"do": "wait"})
    effect.submit({"do": "cancel"})
    bench.app.cancel("cancel", actor="ana", reason="not needed")
    for operation_id in ("wait", "hang", "return", "reject", "cancel"):
        before = bench.app.get(operation_id), bench.app.events(operation_id)
        with pytest.raises(TransitionRefusedError) as refused:
            getattr(bench.app, verb)(operation_id, **FACTS, expected_version=before[0].version)
        assert (refused.value.exit_code, refused.value.status) == (4, before[0].status)
        assert (bench.app.get(operation_id), bench.app.events(operation_id)) == before
    with pytest.raises(OperationNotFoundError):
        getattr(bench.app, verb)("nobody", **FACTS, expected_version=1)
    gate.set()
    runner.join()


@pytest.mark.promise("P50", part="the library; the exit code is shown with the command line")
@pytest.mark.parametrize("verb", VERBS)
def test_a_decision_needs_an_actor_a_reason_and_an_evidence_reference(bench: Bench, verb: str) -> None:
    _, op = quarantined(bench)
    for missing in FACTS:
        for blank in ("", "  ", None, 7):
            with pytest.raises(ValueError, match=missing):
                getattr(bench.app, verb)(OPERATION_ID, **FACTS | {missing: blank}, expected_version=op.version)
        with pytest.raises(TypeError, match=missing):
            getattr(bench.app, verb)(OPERATION_ID, **{name: value for name, value in FACTS.items() if name != missing}, expected_version=1)
    assert bench.app.get(OPERATION_ID) == op
    decide(bench.app, verb, op.version)
    last = bench.app.events(OPERATION_ID)[-1].data
    assert (last["actor"], last["reason_given"], last["evidence_reference"]) == tuple(FACTS.values())
    assert last["seen_version"] == op.version
    assert getpass.getuser() in last["os_user"]


@pytest.mark.promise("P51")
def test_a_person_confirms_with_an_output_that_is_replayed(bench: Bench) -> None:
    handler = Counted()
    effect, op = quarantined(bench, handler)
    for wrong, error in ((object(), TypeError), ({1, 2}, TypeError), (float("nan"), ValueError), ("x" * 1_048_576, ValueError)):
        with pytest.raises(error):
            decide(bench.app, "confirm", op.version, output=wrong)
    with pytest.raises(ValueError, match="provider_operation_id"):
        decide(bench.app, "confirm", op.version, provider_operation_id=" ")
    assert bench.app.get(OPERATION_ID) == op
    done = decide(bench.app, "confirm", op.version, output={"status": "captured"}, provider_operation_id="pay-1")
    assert (done.status, done.outcome, done.output, done.provider_operation_id) == (
        Status.CONFIRMED, Outcome.CONFIRMED, {"status": "captured"}, "pay-1",
    )  # fmt: skip
    assert bench.types()[-1] == "operator_confirmed"
    for again in (effect.submit(ARGUMENTS), effect.execute(ARGUMENTS)):
        assert (again.created, again.result()) == (False, {"status": "captured"})
    assert handler.count == 1


@pytest.mark.promise("P51", part="without an output")
def test_a_person_confirms_without_an_output_and_a_null_is_an_output(bench: Bench) -> None:
    _, op = quarantined(bench)
    assert decide(bench.app, "confirm", op.version).has_output is False
    bench.effect(Counted(), name="other")
    op = bench.app.execute("other", ARGUMENTS, operation_id="other")
    done = bench.app.confirm("other", **FACTS, expected_version=op.version, output=None)
    assert (done.has_output, done.result()) == (True, None)


@pytest.mark.promise("P52")
def test_a_person_rejects_and_the_rejection_is_replayed(bench: Bench) -> None:
    bench.clock.freeze()
    handler = Counted()
    effect, op = quarantined(bench, handler)
    bench.clock.advance(0.000001)
    done = decide(bench.app, "reject", op.version)
    assert (done.status, done.outcome, done.error) == (Status.REJECTED, Outcome.FAILED, FACTS["reason"])
    assert (done.attempt_records[0]["closed_by"], bench.types()[-1]) == ("operator_asserted", "operator_rejected")
    assert (effect.execute(ARGUMENTS).outcome, handler.count) == (Outcome.FAILED, 1)


@pytest.mark.promise("P53")
def test_an_authorized_retry_is_exactly_one_more_attempt_beyond_the_budget(bench: Bench) -> None:
    handler = Counted(failures=9)
    effect, op = quarantined(bench, handler, **guaranteed(1))
    effect.contract.probe(lambda: ProbeResult.unknown())
    bench.clock.advance(1)
    ready = decide(bench.app, "authorize_retry", op.version)
    assert (ready.status, ready.outcome, ready.attempts) == (Status.PREPARED, None, 1)
    assert (ready.attempt_records[0]["closed_by"], ready.attempt_records[0]["basis"]) == ("operator_asserted", "operator")
    assert bench.types()[-1] == "operator_retry_authorized"
    worker = bench.worker()
    for _ in range(20):
        worker.turn()
        worker.reconcile()
        bench.clock.advance(3600)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, handler.count) == (Status.QUARANTINED, 2, 2)


@pytest.mark.promise("S63", part="the library; the exit code is shown with the command line")
@pytest.mark.parametrize("verb", VERBS)
def test_a_decision_is_bound_to_the_version_that_the_person_saw(bench: Bench, verb: str) -> None:
    effect, op = quarantined(bench)
    with pytest.raises(TypeError, match="expected_version"):
        getattr(bench.app, verb)(OPERATION_ID, **FACTS)
    for wrong in (None, "4", True, 4.0):
        with pytest.raises(TypeError, match="expected_version"):
            getattr(bench.app, verb)(OPERATION_ID, **FACTS, expected_version=wrong)
    for stale in (op.version - 1, op.version + 1):
        with pytest.raises(TransitionRefusedError) as refused:
            decide(bench.app, verb, stale)
        assert refused.value.exit_code == 4
        assert str(op.version) in str(refused.value)
    assert bench.app.get(OPERATION_ID) == op
    effect.contract.probe(lambda: ProbeResult.unknown())
    for _ in range(10):
        bench.app.reconcile(OPERATION_ID)
    assert len(seen(bench.app.get(OPERATION_ID), "probe_unknown")) == 10
    assert bench.app.get(OPERATION_ID).version == op.version
    assert decide(bench.app, verb, op.version).version == op.version + 1


@pytest.mark.promise("S63", part="two operators at once")
def test_of_two_operators_at_once_one_wins(bench: Bench) -> None:
    _, op = quarantined(bench)
    start, ends = threading.Barrier(8), list[str]()

    def resolve(verb: str) -> None:
        start.wait()
        try:
            ends.append(decide(bench.app, verb, op.version).status)
        except TransitionRefusedError:
            ends.append("refused")

    threads = [threading.Thread(target=resolve, args=(VERBS[number % 3],)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([end for end in ends if end != "refused"]) == 1
    assert len(ends) == 8


@pytest.mark.promise("P52", "S63", part="a second decision after a first one")
def test_a_second_decision_is_refused_and_the_first_one_can_be_read(bench: Bench) -> None:
    handler = Counted()
    _, op = quarantined(bench, handler)
    done = decide(bench.app, "reject", op.version, assert_nothing_can_arrive=True)
    for version in (op.version, done.version):
        with pytest.raises(TransitionRefusedError) as refused:
            decide(bench.app, "authorize_retry", version)
        assert "rejected" in str(refused.value)
    last = bench.app.events(OPERATION_ID)[-1]
    assert (last.type, last.data["actor"]) == ("operator_rejected", "ana")
    assert (bench.worker().turn(), handler.count) == (0, 1)


@pytest.mark.promise("S121", part="the library; the flag is shown with the command line")
@pytest.mark.parametrize("what", ["committed", "late return"])
def test_a_retry_is_not_authorized_against_a_confirmation(bench: Bench, what: str) -> None:
    handler = Counted()
    if what == "committed":
        effect = bench.effect(handler, outcome_probe=lambda: ProbeResult.committed(output="pending"))
        effect.contract.postcondition(lambda output: output == "captured")
        bench.app.execute(effect, ARGUMENTS)
        op = bench.app.reconcile(OPERATION_ID)
    else:
        gate = bench.gate()
        op = bench.app.execute(bench.effect(lambda: gate.wait() and "late", timeout=1.0), ARGUMENTS)
        decide(bench.app, "reject", op.version, assert_nothing_can_arrive=True)
        gate.set()
        eventually(lambda: "late_return" in bench.types())
        op = bench.app.get(OPERATION_ID)
    assert op.status is Status.QUARANTINED
    with pytest.raises(TransitionRefusedError):
        decide(bench.app, "authorize_retry", op.version, assert_nothing_can_arrive=True)
    with pytest.raises(TypeError, match="accept_second_effect"):
        decide(bench.app, "authorize_retry", op.version, accept_second_effect=1)
    assert bench.app.get(OPERATION_ID) == op
    op = decide(bench.app, "authorize_retry", op.version, assert_nothing_can_arrive=True, accept_second_effect=True)
    assert (op.status, bench.app.events(OPERATION_ID)[-1].data["accept_second_effect"]) == (Status.PREPARED, True)


@pytest.mark.promise("S134", part="fenced, and by assertion; may_still_run")
@pytest.mark.parametrize("verb", ["reject", "authorize_retry"])
def test_a_person_waits_until_nothing_can_arrive_any_more_or_asserts_it(bench: Bench, verb: str) -> None:
    bench.clock.freeze()
    _, op = quarantined(bench, network_drain=120)
    with pytest.raises(TypeError, match="assert_nothing_can_arrive"):
        decide(bench.app, verb, op.version, assert_nothing_can_arrive=1)
    fenced = op.attempt_records[0]["fenced_at"]
    for seconds in (119, 1):
        bench.clock.advance(seconds)
        with pytest.raises(TransitionRefusedError) as refused:
            decide(bench.app, verb, op.version)
        text = str(refused.value)
        until = datetime.fromtimestamp(int(fenced.timestamp()) + 120, UTC)
        assert "attempt 1" in text
        assert "raised" in text
        assert until.strftime("%Y-%m-%dT%H:%M:%SZ") in text
        assert bench.app.get(OPERATION_ID) == op
    bench.clock.advance(1)
    done = decide(bench.app, verb, op.version)
    assert done.status is (Status.REJECTED if verb == "reject" else Status.PREPARED)
    assert bench.app.events(OPERATION_ID)[-1].data["assert_nothing_can_arrive"] is False


@pytest.mark.promise("S134", part="may_still_run, and confirm")
@pytest.mark.parametrize("verb", VERBS)
def test_what_may_still_run_is_decided_by_assertion_only_but_confirmed_at_once(bench: Bench, verb: str) -> None:
    gate = bench.gate()
    op = bench.app.execute(bench.effect(lambda: gate.wait(), timeout=1.0), ARGUMENTS)
    assert op.status is Status.QUARANTINED
    bench.clock.advance(1_000_000)
    if verb == "confirm":
        assert decide(bench.app, verb, op.version).status is Status.CONFIRMED
        return
    with pytest.raises(TransitionRefusedError, match="may still run"):
        decide(bench.app, verb, op.version)
    done = decide(bench.app, verb, op.version, assert_nothing_can_arrive=True)
    assert done.attempt_records[0]["fence"] == "operator_asserted"
    assert bench.app.events(OPERATION_ID)[-1].data["assert_nothing_can_arrive"] is True


@pytest.mark.promise("S134", "S108", part="a hand-off counts from its recorded end")
def test_a_hand_off_is_decided_from_its_recorded_end_on(bench: Bench) -> None:
    bench.clock.freeze()
    _, op = quarantined(bench, dispatch="handoff", commit_horizon=60)
    assert op.attempt_records[0]["fence"] == "may_still_run"
    bench.clock.advance(60)
    with pytest.raises(TransitionRefusedError, match="recorded end"):
        decide(bench.app, "reject", op.version)
    bench.clock.advance(0.000001)
    assert decide(bench.app, "reject", op.version).status is Status.REJECTED


@pytest.mark.promise("P50", part="the decision and the move are one event in one transaction")
def test_a_decision_and_its_move_are_one_write(bench: Bench) -> None:
    _, op = quarantined(bench, retry=RetryPolicy(max_attempts=1))
    look = "SELECT count(*) FROM seal"
    before = another_program(bench.app.ledger.path, look)[0][0]
    decide(bench.app, "confirm", op.version, output=1)
    assert another_program(bench.app.ledger.path, look)[0][0] == before + 1


@pytest.mark.parametrize("name", ["actor", "reason", "evidence_reference"])
@pytest.mark.parametrize(("text", "says"), [("x" * 2001, "longer than 2000"), ("ana\ud800", "lone surrogate"), (" ", "blank")])
def test_what_a_person_says_is_bounded_text(bench: Bench, name: str, text: str, says: str) -> None:
    _, op = quarantined(bench)
    with pytest.raises(ValueError, match=f"{name} .*{says}.* Nothing was changed"):
        bench.app.confirm(OPERATION_ID, **{**FACTS, name: text}, expected_version=op.version)
    assert bench.app.get(OPERATION_ID).version == op.version
