"""A row that no ledger can hold is decided on by nobody."""

from typing import Any

import pytest

from settled import RetryPolicy
from settled.core.backoff import backoff_us
from settled.core.decide_claim import decide_claim, decide_deadline
from settled.core.decide_end import End, EndFacts, decide_end
from settled.core.decide_evidence import Answer, decide_after_probe
from settled.core.decide_late import decide_late
from settled.core.decide_unknown import decide_escalation, decide_unattended
from settled.core.words import Status
from tests.lib.core.builders import absent, dispatched, guaranteed

DECISIONS = {
    "claim": lambda case: decide_claim(case, 7, 1),
    "deadline": decide_deadline,
    "end": lambda case: decide_end(case, EndFacts(end=End.TIMED_OUT)),
    "late": lambda case: decide_late(case, 1, EndFacts(end=End.RETURNED)),
    "probe": lambda case: decide_after_probe(case, Answer(absent(), started=case.now)),
    "unattended": decide_unattended,
    "escalation": decide_escalation,
}


@pytest.mark.promise("D13", part="decisions about a foreign status or attempt 0")
@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"status": "dispatched"}, TypeError),
        ({"status": "retry"}, TypeError),
        ({"status": None}, TypeError),
        ({"attempt": 0}, ValueError),
        ({"attempt": -1}, ValueError),
        ({"attempt": True}, ValueError),
        ({"status": Status.OUTCOME_UNKNOWN, "attempt": -1}, ValueError),
    ],
)
def test_nothing_is_decided_about_a_row_that_no_ledger_can_hold(decision: str, changes: dict[str, Any], error: type[Exception]) -> None:
    life = dispatched(guaranteed())
    with pytest.raises(error, match="Nothing was decided"):
        life.case_changes["row"] = life.row._replace(**changes)
        DECISIONS[decision](life.case)


@pytest.mark.promise("D13")
def test_values_of_a_policy_and_of_its_decisions_are_exact() -> None:
    for attempts, error in ((True, TypeError), (2.0, TypeError), ("3", TypeError), (0, ValueError), (-1, ValueError)):
        with pytest.raises(error, match="max_attempts"):
            RetryPolicy(max_attempts=attempts)  # type: ignore[arg-type]
    life = dispatched(guaranteed())
    life.case_changes["row"] = life.row._replace(attempt=0)
    with pytest.raises(ValueError, match="Nothing was decided"):
        decide_end(life.case, EndFacts(end=End.REJECTED, retryable=True))
    with pytest.raises(ValueError, match="1 or more"):
        backoff_us(0, initial_us=1, factor=2.0, cap_us=5, jitter=0.0, draw=0.0)
