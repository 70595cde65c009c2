"""Evidence from outside and from the past: notices, late ends, contradictions, and what waits for an operation nobody knows yet."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from settled import (
    Effect,
    EffectRejected,
    LedgerUnavailableError,
    NotSent,
    Operation,
    OperationNotFoundError,
    Outcome,
    ProbeResult,
    ResultUnavailableError,
    RetryPolicy,
    Status,
)
from settled.store import inbox
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, guaranteed, seen

REF = "ref-INV-1042"
ABSENT = ProbeResult.not_committed(terminal=True, healthy=True, reference=REF)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


class Late:
    """A handler that outlasts its limit on its first attempt and ends as it is told once it is let go."""

    def __init__(self, bench: Bench, end: Any, *then: Any) -> None:
        self.gate, self.end, self.then, self.count = bench.gate(), end, then, 0
        self.effects = 0

    def __call__(self, ctx: Any) -> Any:
        self.count += 1
        end = self.end if self.count == 1 else self.then[min(self.count - 2, len(self.then) - 1)]
        if self.count == 1:
            self.gate.wait()
        if isinstance(end, BaseException):
            raise end
        self.effects += 1
        if isinstance(end, dict) and "id" in end:
            ctx.report(provider_operation_id=end["id"])
        return end


def effect_of(bench: Bench, handler: Callable[..., Any], **terms: Any) -> Effect:
    plain: dict[str, Any] = {"provider_reference": lambda a: f"ref-{a['invoice_id']}", "outcome_probe": lambda: ProbeResult.unknown()}
    return bench.effect(handler, **plain | terms)


def timed_out(bench: Bench, handler: Callable[..., Any], **terms: Any) -> Operation:
    op = bench.app.execute(effect_of(bench, handler, timeout=1.0, **terms), ARGUMENTS)
    assert "timed_out" in bench.types()
    return op


def let_go(bench: Bench, late: Late, event: str) -> Operation:
    """Let the late handler end, and wait until its end is recorded."""
    late.gate.set()
    eventually(lambda: event in bench.types())
    return bench.app.get(OPERATION_ID)


def raised(bench: Bench, **terms: Any) -> Effect:
    """An effect whose one attempt has an unknown outcome."""

    def handler() -> None:
        raise ConnectionResetError

    effect = effect_of(bench, handler, **terms)
    bench.app.execute(effect, ARGUMENTS)
    return effect


def committed(**facts: Any) -> ProbeResult:
    return ProbeResult.committed(**{"reference": REF, **facts})


# ------------------------------------------------------------------ a provider's notice


@pytest.mark.promise("S46", part="the library; the command line is shown elsewhere")
@pytest.mark.parametrize("by", ["operation_id", "provider_reference"])
def test_a_bound_notice_confirms_and_the_same_notice_twice_moves_once(bench: Bench, by: str) -> None:
    effect = raised(bench)
    effect.contract.postcondition(lambda output: output["status"] == "captured")
    address = {"operation_id": OPERATION_ID} if by == "operation_id" else {"provider_reference": REF}
    notice = committed(output={"status": "captured"}, evidence={"event": "evt_1"})
    op = bench.app.add_evidence(source="webhook", result=notice, **address)
    assert op is not None
    assert (op.status, op.output, op.attempts) == (Status.CONFIRMED, {"status": "captured"}, 1)
    assert seen(op, "probe_committed")[0]["source"] == "webhook"
    again = bench.app.add_evidence(source="webhook", result=notice, **address)
    assert again is not None
    assert (again.status, again.version, len(seen(again, "probe_committed"))) == (Status.CONFIRMED, op.version, 2)
    assert again.duplicate_suspected is False


@pytest.mark.promise("S46", part="the library; the command line is shown elsewhere")
def test_a_notice_that_is_not_bound_or_does_not_meet_the_postcondition_does_not_confirm(bench: Bench) -> None:
    effect = raised(bench)
    for unbound in (ProbeResult.committed(), ProbeResult.committed(reference="other")):
        op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=unbound)
        assert op is not None
        assert (op.status, op.outcome) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
        assert seen(op, "probe_unknown")[-1]["facts"]["why"] == "reference_mismatch"
    effect.contract.postcondition(lambda output: output["status"] == "captured")
    op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=committed(output={"status": "pending"}))
    assert op is not None
    assert (op.status, op.reason) == (Status.QUARANTINED, "postcondition_failed")


def test_a_notice_spends_no_probe_budget(bench: Bench) -> None:
    raised(bench, probe_attempts_max=1)
    for _ in range(3):
        op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=ProbeResult.unknown())
        assert op is not None
        assert op.status is Status.OUTCOME_UNKNOWN


@pytest.mark.promise("S46", part="the library; the command line is shown elsewhere")
def test_a_notice_names_exactly_one_thing_that_must_be_known(bench: Bench) -> None:
    raised(bench)
    with pytest.raises(OperationNotFoundError):
        bench.app.add_evidence(operation_id="nobody", source="webhook", result=committed())
    for address in ({}, {"operation_id": OPERATION_ID, "provider_reference": REF}):
        with pytest.raises(TypeError):
            bench.app.add_evidence(source="webhook", result=committed(), **address)
    with pytest.raises(ValueError, match="source"):
        bench.app.add_evidence(operation_id=OPERATION_ID, source=" ", result=committed())
    with pytest.raises(TypeError, match="ProbeResult"):
        bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result={"status": "committed"})  # type: ignore[arg-type]
    assert bench.types() == ["submitted", "dispatched", "raised"]


# ------------------------------------------------------------------ before the operation


@pytest.mark.promise("S107", part="all but its escalation")
def test_confirming_evidence_before_any_dispatch_stops_the_dispatch(bench: Bench) -> None:
    calls = list[int]()
    effect = effect_of(bench, lambda: calls.append(1))
    effect.submit(ARGUMENTS)
    op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=committed())
    assert op is not None
    assert (op.status, op.reason, op.attempts, op.outcome) == (Status.PREPARED, "evidence_before_dispatch", 0, None)
    effect.execute(ARGUMENTS)
    for _ in range(2):
        worker = bench.worker()
        worker.turn()
        worker.reconcile()
        worker.sweeper.escalate()
        bench.clock.advance(90_000)
    assert (bench.app.get(OPERATION_ID).status, calls) == (Status.PREPARED, [])
    op = bench.app.cancel(OPERATION_ID, actor="ana", reason="paid already")
    assert (op.status, op.reason, op.outcome) == (Status.QUARANTINED, "conflicting_evidence", Outcome.UNKNOWN)
    facts: dict[str, Any] = {"actor": "ana", "reason": "seen at the bank", "evidence_reference": "stmt-1", "expected_version": op.version}
    assert bench.app.confirm(OPERATION_ID, **facts).status is Status.CONFIRMED
    assert calls == []


@pytest.mark.promise("S107", part="a deadline")
def test_a_deadline_after_early_evidence_is_a_contradiction_and_not_a_failure(bench: Bench) -> None:
    effect = effect_of(bench, lambda: None)
    deadline = datetime.fromtimestamp(bench.clock.now().wall_us / 1e6, UTC) + timedelta(hours=1)
    effect.submit(ARGUMENTS, deadline=deadline)
    bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=committed())
    bench.clock.advance(3601)
    worker = bench.worker()
    worker.turn()
    worker.sweeper.escalate()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.reason) == (Status.QUARANTINED, "conflicting_evidence")


@pytest.mark.promise("S135", part="the library; the exit code is shown with the command line")
def test_evidence_for_a_reference_that_nobody_knows_waits_for_its_operation(bench: Bench) -> None:
    calls = list[int]()
    effect = effect_of(bench, lambda: calls.append(1))
    assert bench.app.add_evidence(provider_reference=REF, source="webhook", result=committed(evidence={"event": "evt_1"})) is None
    assert bench.submitted() == []
    with bench.app.engine().connect() as connection:
        effect.submit(ARGUMENTS, connection=connection)
        connection.rollback()
    op = effect.submit(ARGUMENTS)
    assert (op.status, op.reason) == (Status.PREPARED, "evidence_before_dispatch")
    assert bench.worker().turn() == 0
    assert (calls, bench.types()) == ([], ["submitted", "probe_committed", "held"])
    (early,) = bench.app.get(OPERATION_ID).evidence
    assert (early["source"], early["facts"]["evidence"]) == ("webhook", {"event": "evt_1"})
    assert bench.app.add_evidence(provider_reference="ref-INV-2", source="webhook", result=ProbeResult.pending()) is None
    assert effect.execute(ARGUMENTS | {"invoice_id": "INV-2"}).status is Status.CONFIRMED
    assert bench.types("invoice:INV-2:capture") == ["submitted", "probe_pending", "dispatched", "returned"]
    assert calls == [1]


@pytest.mark.promise("S135", part="a request by name")
def test_waiting_evidence_is_attached_when_a_request_by_name_is_derived(bench: Bench) -> None:
    bench.app.add_evidence(provider_reference=REF, source="webhook", result=committed())
    bench.app.submit("capture_payment", ARGUMENTS, operation_id=OPERATION_ID)
    working = bench.again()
    effect_of(bench, lambda: None, app=working)
    worker = bench.worker(working)
    worker.reconcile()
    assert (worker.turn(), bench.app.get(OPERATION_ID).reason) == (0, "evidence_before_dispatch")


@pytest.mark.promise("S60", part="the evidence inbox")
def test_a_full_inbox_refuses_a_notice_and_never_loses_it_silently(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = inbox.keep.__kwdefaults__
    monkeypatch.setitem(limits, "per_reference_max", 2)
    for _ in range(2):
        bench.app.add_evidence(provider_reference=REF, source="webhook", result=committed())
    with pytest.raises(LedgerUnavailableError, match="not kept"):
        bench.app.add_evidence(provider_reference=REF, source="webhook", result=committed())


# ------------------------------------------------------------------ late ends


@pytest.mark.promise("S43", "P29", part="out of outcome_unknown and quarantined")
@pytest.mark.parametrize("quarantined", [False, True])
def test_a_late_return_confirms_what_was_unknown(bench: Bench, quarantined: bool) -> None:
    late = Late(bench, {"id": "pay-1"})
    op = timed_out(bench, late, **({"outcome_probe": None} if quarantined else {}))
    assert op.status is (Status.QUARANTINED if quarantined else Status.OUTCOME_UNKNOWN)
    assert op.attempt_records[0]["fence"] == "may_still_run"
    op = let_go(bench, late, "late_return")
    assert (op.status, op.output, op.provider_operation_id, op.attempts) == (Status.CONFIRMED, {"id": "pay-1"}, "pay-1", 1)
    assert op.attempt_records[0]["fence"] == "returned"
    assert late.count == 1


@pytest.mark.promise("S43", "P15", part="a late return whose postcondition does not hold")
def test_a_late_return_without_its_postcondition_is_kept_and_confirms_nothing(bench: Bench) -> None:
    late = Late(bench, {"status": "declined"})
    timed_out(bench, late, postcondition=lambda output: output["status"] == "captured")
    op = let_go(bench, late, "late_return")
    assert (op.status, op.outcome) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN)


@pytest.mark.promise("P45", "S43", part="a late return while an attempt is open")
def test_confirming_evidence_wins_over_a_new_claim(bench: Bench) -> None:
    late = Late(bench, {"id": "pay-1"}, {"id": "never"})
    timed_out(bench, late, **guaranteed())
    bench.app.reconcile(OPERATION_ID)
    assert bench.app.get(OPERATION_ID).status is Status.PREPARED
    op = let_go(bench, late, "late_return")
    assert (op.status, op.output) == (Status.CONFIRMED, {"id": "pay-1"})
    bench.clock.advance(3600)
    assert bench.worker().turn() == 0
    assert late.count == 1


@pytest.mark.promise("D41", "D49", "S06", part="a late return after a person's rejection, and who leaves the contradiction")
def test_a_late_return_after_a_person_rejected_is_a_contradiction_that_only_a_person_leaves(bench: Bench) -> None:
    late = Late(bench, {"id": "pay-1"})
    answers = [committed(), ABSENT]
    op = timed_out(bench, late, outcome_probe=None)
    facts: dict[str, Any] = {"actor": "ana", "reason": "not in the bank's list", "evidence_reference": "stmt-1"}
    bench.app.reject(OPERATION_ID, **facts, expected_version=op.version, assert_nothing_can_arrive=True)
    op = let_go(bench, late, "late_return")
    assert (op.status, op.reason, op.outcome) == (Status.QUARANTINED, "conflicting_evidence", Outcome.UNKNOWN)
    for answer in answers:
        kept = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=answer)
        assert kept is not None
        assert (kept.status, kept.reason) == (Status.QUARANTINED, "conflicting_evidence")
    op = bench.app.get(OPERATION_ID)
    assert {"operator_rejected", "late_return", "probe_committed", "probe_unknown"} <= {one["type"] for one in op.evidence}
    assert bench.app.confirm(OPERATION_ID, **facts, expected_version=op.version).status is Status.CONFIRMED
    assert late.count == 1


@pytest.mark.promise("D41", "D49", "S06", part="two probes, and a cancelled operation")
def test_two_contradicting_answers_and_a_commit_after_a_cancellation_go_to_a_person(bench: Bench) -> None:
    answers = [ABSENT, committed()]
    effect = raised(bench, outcome_probe=lambda: answers.pop(0))
    assert bench.app.reconcile(OPERATION_ID).status is Status.REJECTED
    op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=answers.pop())
    assert op is not None
    assert (op.status, op.reason) == (Status.QUARANTINED, "conflicting_evidence")
    effect.submit(ARGUMENTS | {"invoice_id": "INV-2"})
    bench.app.cancel("invoice:INV-2:capture", actor="ana", reason="not needed")
    op = bench.app.add_evidence(
        operation_id="invoice:INV-2:capture", source="webhook", result=ProbeResult.committed(reference="ref-INV-2")
    )
    assert op is not None
    assert (op.status, op.reason, op.attempts) == (Status.QUARANTINED, "conflicting_evidence", 0)
    confirmed = effect_of(bench, lambda: "done", name="confirmed", provider_reference=None)
    bench.app.execute(confirmed, ARGUMENTS, operation_id="done")
    bench.clock.advance(1)
    op = bench.app.add_evidence(operation_id="done", source="webhook", result=ProbeResult.not_committed(terminal=True, healthy=True))
    assert op is not None
    assert (op.status, op.reason, op.outcome) == (Status.QUARANTINED, "conflicting_evidence", Outcome.UNKNOWN)


@pytest.mark.promise("D42", "S07", part="the operation; its one escalation is shown with the worker")
def test_two_confirmations_with_two_ids_are_perhaps_two_effects(bench: Bench) -> None:
    late = Late(bench, {"id": "pay-1"})
    timed_out(bench, late)
    other = committed(provider_operation_id="pay-2", output={"id": "pay-2"})
    op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=other)
    assert op is not None
    assert (op.status, op.duplicate_suspected) == (Status.CONFIRMED, False)
    op = let_go(bench, late, "late_return")
    assert (op.status, op.outcome, op.duplicate_suspected, op.provider_operation_id) == (Status.CONFIRMED, Outcome.CONFIRMED, True, "pay-2")
    assert [one["facts"]["id"] for one in op.evidence if "id" in one["facts"]] == ["pay-2", "pay-1"]
    assert op.output == {"id": "pay-2"}


@pytest.mark.promise("D43")
@pytest.mark.parametrize(
    ("reported", "answer", "shown"),
    [
        ("pay-1", {"provider_operation_id": "pay-1", "output": 1}, True),
        ("pay-1", {"provider_operation_id": "pay-2", "output": 1}, False),
        ("pay-1", {"output": 1}, False),
        (None, {"output": 1}, True),
    ],
    ids=["same id", "other id", "no id beside one", "no id anywhere"],
)
def test_an_output_is_shown_only_where_it_belongs_to_the_retained_id(bench: Bench, reported: str | None, answer: Any, shown: bool) -> None:
    def handler(ctx: Any) -> None:
        if reported is not None:
            ctx.report(provider_operation_id=reported)
        raise ConnectionResetError

    bench.app.execute(effect_of(bench, handler, outcome_probe=lambda: committed(**answer)), ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.has_output) == (Status.CONFIRMED, shown)
    if shown:
        assert op.result() == 1
        return
    with pytest.raises(ResultUnavailableError):
        op.result()


@pytest.mark.promise("D43", part="a second uncorrelated output")
def test_a_second_output_without_an_id_does_not_replace_the_first(bench: Bench) -> None:
    raised(bench)
    for output in (1, 2):
        bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=committed(output=output))
    assert bench.app.get(OPERATION_ID).output == 1


# ------------------------------------------------------------------ late rejections, and what is kept meanwhile


@pytest.mark.promise("S105")
@pytest.mark.parametrize(
    ("end", "status"),
    [
        (EffectRejected("no"), Status.REJECTED),
        (EffectRejected("busy", retryable=True), Status.PREPARED),
        (NotSent("dns"), Status.PREPARED),
    ],
    ids=["final", "retryable", "not sent"],
)
def test_a_late_rejection_closes_its_attempt_and_is_decided_like_a_rejection(bench: Bench, end: Exception, status: Status) -> None:
    late = Late(bench, end, "done")
    timed_out(bench, late, retry=RetryPolicy(max_attempts=2, jitter=0))
    op = let_go(bench, late, "late_rejected")
    assert (op.status, op.attempt_records[0]["closed_by"]) == (status, "not_sent" if isinstance(end, NotSent) else "rejected")
    assert op.outcome is (Outcome.FAILED if status is Status.REJECTED else None)
    bench.clock.advance(60)
    bench.worker().turn()
    op = bench.app.get(OPERATION_ID)
    assert (op.attempts, late.effects) == ((1, 0) if status is Status.REJECTED else (2, 1))


@pytest.mark.promise("S105", part="out of quarantine")
@pytest.mark.parametrize("retryable", [False, True])
def test_a_late_rejection_out_of_quarantine_rejects_and_never_dispatches(bench: Bench, retryable: bool) -> None:
    late = Late(bench, EffectRejected("no", retryable=retryable), "done")
    op = timed_out(bench, late, outcome_probe=None, retry=RetryPolicy(max_attempts=3))
    assert op.status is Status.QUARANTINED
    assert let_go(bench, late, "late_rejected").status is Status.REJECTED
    bench.clock.advance(3600)
    assert (bench.worker().turn(), late.count) == (0, 1)


@pytest.mark.promise("S105", part="of a row that was confirmed through that attempt")
def test_a_late_rejection_of_what_was_confirmed_is_a_contradiction(bench: Bench) -> None:
    late = Late(bench, EffectRejected("no"))
    timed_out(bench, late)
    bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=committed())
    op = let_go(bench, late, "late_rejected")
    assert (op.status, op.reason) == (Status.QUARANTINED, "conflicting_evidence")


@pytest.mark.promise("S103", "P44", part="a late return of attempt 1 kept while attempt 2 runs")
@pytest.mark.parametrize(
    ("end", "type_"),
    [(EffectRejected("no"), "rejected"), (NotSent("dns"), "not_sent"), (ConnectionResetError(), "raised"), ({"id": "pay-1"}, "returned"),
     ({"id": "pay-2"}, "returned")],
    ids=["rejected", "not sent", "raised", "same id", "other id"],
)  # fmt: skip
def test_a_confirmation_that_was_kept_meanwhile_settles_first(bench: Bench, end: Any, type_: str) -> None:
    late, second, inside = Late(bench, {"id": "pay-1"}), bench.gate(), threading.Event()

    def handler(ctx: Any) -> Any:
        if ctx.attempt == 1:
            return late(ctx)
        inside.set()
        second.wait()
        if isinstance(end, BaseException):
            raise end
        ctx.report(provider_operation_id=end["id"])
        return end

    timed_out(bench, handler, **guaranteed())
    bench.app.reconcile(OPERATION_ID)
    bench.clock.advance(60)
    worker = bench.worker()
    assert worker.step() == 1
    inside.wait()
    op = let_go(bench, late, "late_return")
    assert (op.status, op.attempts) == (Status.DISPATCHED, 2)
    second.set()
    worker.record()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.output, op.provider_operation_id) == (Status.CONFIRMED, {"id": "pay-1"}, "pay-1")
    after = bench.types()[bench.types().index("late_return") + 1 :]
    assert after == ["evidence_merged", type_]
    assert op.duplicate_suspected is (end == {"id": "pay-2"})
    assert [event.status for event in bench.app.events(OPERATION_ID)][-2:] == ["confirmed", "confirmed"]


@pytest.mark.promise("D08")
@pytest.mark.parametrize("retryable", [False, True])
def test_a_later_failure_never_erases_an_earlier_unknown(bench: Bench, retryable: bool) -> None:
    late = Late(bench, "never let go", EffectRejected("no", retryable=retryable))
    timed_out(bench, late, **guaranteed())
    bench.app.reconcile(OPERATION_ID)
    bench.clock.advance(60)
    bench.worker().turn()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, op.attempts) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, 2)
    assert [one["closed_by"] for one in op.attempt_records] == ["open", "rejected"]
    op = bench.app.add_evidence(operation_id=OPERATION_ID, source="webhook", result=committed()) or op
    assert op.status is Status.CONFIRMED


@pytest.mark.promise("P38", part="no fence: kept, no dispatch")
def test_an_absence_while_the_handler_may_still_run_proves_nothing(bench: Bench) -> None:
    late = Late(bench, "never let go")
    timed_out(bench, late, outcome_probe=lambda: ABSENT, retry=RetryPolicy(max_attempts=3), probe_attempts_max=2)
    bench.clock.advance(3600)
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, seen(op, "probe_unknown")[0]["facts"]["why"]) == (Status.OUTCOME_UNKNOWN, "no_fence")
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.reason, op.attempts, late.count) == (Status.QUARANTINED, "probe_budget_spent", 1, 1)


@pytest.mark.parametrize(
    "named",
    [
        {"source": "x" * 2001}, {"source": "\ud800"}, {"source": " "},
        {"provider_reference": " "}, {"provider_reference": ""}, {"provider_reference": "x" * 2001}, {"provider_reference": "\ud800"},
    ],
)  # fmt: skip
def test_a_notice_whose_source_or_reference_names_nothing_is_not_kept(bench: Bench, named: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(named))} .* Nothing was"):
        bench.app.add_evidence(**{"source": "s", "provider_reference": "ref", **named}, result=ProbeResult.pending())  # type: ignore[arg-type]
    with bench.app.ledger.read() as transaction:
        assert transaction.cursor.execute("SELECT count(*) FROM evidence_inbox").fetchone()[0] == 0
