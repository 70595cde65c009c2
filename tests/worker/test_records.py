"""What is kept of each attempt: one record, written at its end, with what ended it, closed it and let another follow."""

import json
from typing import Any

import pytest

from settled import App, ProbeResult, RetryPolicy
from settled.core.words import FenceBasis
from settled.execution.job import End
from settled.testing import VirtualClock
from settled_cli.main import run
from tests.worker.conftest import MakeHand
from tests.worker.harness import K, answered, declare, dies, ended, entered, silent, submit

WHO = {"actor": "ana", "reason": "looked", "evidence_reference": "T-1"}
FACTS = {
    "number", "dispatched_at", "ended_at", "terms", "worker", "end", "execution", "verification", "outcome", "error", "error_class",
    "retryable", "fence", "fenced_at", "closed_by", "interruption", "decision", "basis",
}  # fmt: skip


@pytest.mark.promise("D15")
def test_each_attempt_says_what_ended_it_what_closed_it_and_what_let_another_follow(
    app: App, clock: VirtualClock, hand: MakeHand, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `op show -o json`, for every way in which an attempt ends, is closed, and is followed."""
    declare(app, isolation="process", outcome_probe=silent, retry=RetryPolicy(max_attempts=3))
    declare(app, "keyed", isolation="process", **K)
    ends: dict[str, dict[str, Any]] = {
        "pay:0": {"end": End.REJECTED, "fence": FenceBasis.RAISED},
        "pay:1": {"end": End.REJECTED, "fence": FenceBasis.RAISED, "retryable": True},
        "pay:2": {"end": End.NOT_SENT, "fence": FenceBasis.RAISED},
        "pay:3": {"end": End.NEVER_ENTERED, "fence": FenceBasis.NEVER_ENTERED},
        "pay:4": {"end": End.TIMED_OUT, "fence": FenceBasis.PROCESS_KILLED},
        "pay:5": {"end": End.CRASHED, "fence": FenceBasis.PROCESS_KILLED},
        "pay:6": {"end": End.RAISED, "fence": FenceBasis.RAISED, "error_class": "OSError", "error_text": "reset"},
        "pay:7": {"end": End.STOPPED, "fence": FenceBasis.PROCESS_KILLED},
        "keyed:0": {"end": End.TIMED_OUT, "fence": FenceBasis.PROCESS_KILLED},
    }
    owner = hand()
    submit(app, 8)
    owner.start()
    entered(owner)
    dies(owner)
    submit(app, *range(8), 9)
    submit(app, 0, contract="keyed")
    worker = hand(slots=20, probe_room=20)
    jobs = {job.operation_id: job for job in worker.step().jobs}
    app.stop("pay:7", actor="ana", reason="runaway", wait=0)
    worker.step(*(ended(jobs[one], at=clock.now(), **facts) for one, facts in ends.items()))
    worker.sweep("leases")
    clock.advance(1)
    worker.sweep("reconcile")
    probed = {job.operation_id: job for job in worker.probes}
    worker.step(answered(probed["pay:4"], clock.now(), ProbeResult.not_committed(terminal=True, healthy=True)))
    app.authorize_retry("pay:5", **WHO, expected_version=app.get("pay:5").version)
    worker.pump.shut_down()
    worker.step(ended(jobs["pay:9"], End.STOPPED, clock.now(), fence=FenceBasis.PROCESS_KILLED))

    def shown(operation_id: str) -> tuple[object, ...]:
        capsys.readouterr()
        assert run(["--database", str(app.ledger.path), "-o", "json", "op", "show", operation_id]) == 0
        record = json.loads(capsys.readouterr().out)["attempt_records"][0]  # some were followed by another one meanwhile
        assert set(record) == FACTS and (record["number"], record["terms"] is not None) == (1, True)
        assert record["dispatched_at"] <= record["ended_at"]
        return tuple(record[name] for name in ("end", "outcome", "fence", "closed_by", "interruption", "decision", "basis"))

    assert {one: shown(one) for one in (*ends, "pay:8", "pay:9")} == {
        "pay:0": ("rejected", "FAILED", "raised", "rejected", None, "stop", None),
        "pay:1": ("rejected", "FAILED", "raised", "rejected", None, "retry", "rejected_retryable"),
        "pay:2": ("not_sent", "FAILED", "raised", "not_sent", None, "retry", "not_sent"),
        "pay:3": ("never_entered", "FAILED", "never_entered", "never_entered", None, "retry", "not_sent"),
        "pay:4": ("timed_out", "FAILED", "process_killed", "terminal_absence", "timeout", "retry", "terminal_absence"),
        "pay:5": ("crashed", "FAILED", "process_killed", "operator_asserted", "crash", "retry", "operator"),
        "pay:6": ("raised", "UNKNOWN", "raised", "open", "exception", None, None),
        "pay:7": ("stopped", "UNKNOWN", "process_killed", "open", "stopped", None, None),
        "pay:8": ("lease_lost", "UNKNOWN", "process_gone", "open", "lease_lost", None, None),
        "pay:9": ("stopped", "UNKNOWN", "process_killed", "open", "shutdown", None, None),
        "keyed:0": ("timed_out", "UNKNOWN", "process_killed", "open", "timeout", "retry", "key_guarantee"),
    }
    assert app.get("pay:6").attempt_records[0]["error_class"] == "OSError" and app.get("pay:1").attempt_records[0]["retryable"] is True
