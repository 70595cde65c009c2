"""Judging a case: by the destination's count first, and UNKNOWN before a person is an end."""

from typing import Any

import pytest

from settled.core.terms import Terms
from settled_worker.testing.judging import CLAIM_ABSENCE, CLAIM_KEY, CLAIM_REJECTED, CLAIM_RETURN, Failure, Seen, judge, judge_claims
from settled_worker.testing.points import NONE


def seen(**facts: Any) -> Seen:
    plain: dict[str, Any] = {
        "point": NONE,
        "host": NONE,
        "trouble": NONE,
        "told": "it answers",
        "operation_id": "pay:1",
        "status": "confirmed",
        "outcome": "CONFIRMED",
        "reason": None,
        "attempts": 1,
        "effects": 1,
        "events": ("submitted", "dispatched", "returned"),
        "bases": (),
        "closed_by": ("open",),
        "weaknesses": (),
    }
    return Seen(**{**plain, **facts})


QUARANTINED = {"status": "quarantined", "outcome": "UNKNOWN", "reason": "no_probe"}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"status": "rejected", "outcome": "FAILED", "effects": 0, "closed_by": ("rejected",)},
        {**QUARANTINED, "effects": 0},
        {**QUARANTINED, "effects": 1},
    ],
)
def test_one_effect_none_or_an_honest_unknown_is_no_failure(facts: dict[str, Any]) -> None:
    assert judge(seen(**facts)) is None


@pytest.mark.parametrize(
    ("facts", "what", "claim"),
    [
        ({"effects": 2, "bases": ("not_sent", "terminal_absence")}, "2 effects", CLAIM_ABSENCE),
        ({"effects": 3, "bases": ("key_guarantee",)}, "3 effects", CLAIM_KEY),
        ({**QUARANTINED, "effects": 2}, "2 effects", None),
        ({"effects": 0}, "CONFIRMED, and there is no effect", CLAIM_RETURN),
        ({"status": "rejected", "outcome": "FAILED", "closed_by": ("rejected",)}, "FAILED, and there is an effect", CLAIM_REJECTED),
        ({"status": "outcome_unknown", "outcome": "UNKNOWN"}, "stuck in outcome_unknown", None),
        ({"status": "prepared", "outcome": None, "effects": 0}, "stuck in prepared", None),
        ({"status": "dispatched", "outcome": "UNKNOWN"}, "stuck in dispatched", None),
    ],
)
def test_a_failure_is_named_with_the_claim_that_it_disproves(facts: dict[str, Any], what: str, claim: str | None) -> None:
    failure = judge(seen(**facts))
    assert failure is not None and what in failure.what and failure.claim == claim


def test_the_smallest_case_comes_first_and_what_was_not_tried_does_not_hold() -> None:
    big = Failure(what="2 effects", claim=CLAIM_KEY, case=seen(point="entered", host="busy", trouble="answer lost"))
    small = Failure(what="2 effects", claim=CLAIM_KEY, case=seen(trouble="answer lost"))
    claims = {one.name: one for one in judge_claims([big.case, small.case], [big, small], Terms(name="pay", key_guaranteed=True))}
    assert claims[CLAIM_KEY].false_in == (small, big) and claims[CLAIM_KEY].verdict == "false"
    assert claims[CLAIM_REJECTED].verdict == "not tried"
    assert CLAIM_ABSENCE not in claims  # without a probe nothing of the kind is claimed
