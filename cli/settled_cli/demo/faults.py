"""Say what each fault of the shop does to one charge. Pure: a fault is armed by a test, looked up here, and acted on by the shop."""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Plan(NamedTuple):
    """What the shop does with one accepted charge, in this order."""

    commits: int = 1
    commit_late: bool = False  # close at once, commit after `seconds`
    hold_answer: bool = False  # commit, then keep the caller waiting for `seconds`
    stale_reads: bool = False  # commit, but show it to readers only after `seconds`
    status: int | None = 201  # None: the connection is closed without an answer


NO_FAULT: Final = Plan()

PLANS: Final[Mapping[str, Plan]] = {
    "lose_answer": Plan(status=None),
    "fail_before": Plan(commits=0, status=None),
    "commit_late": Plan(commit_late=True, status=None),
    "hang_after": Plan(hold_answer=True),
    "stale_reads": Plan(stale_reads=True),
    "error_after": Plan(status=500),
    "reject": Plan(commits=0, status=402),
    "twice": Plan(commits=2),
}

SECONDS_MAX: Final = 3600.0


class Fault(NamedTuple):
    """One armed fault: it hits the next charge of its reference and is gone."""

    plan: Plan
    seconds: float


def parse_fault(body: Mapping[str, Any]) -> tuple[str, Fault]:
    """Return the reference and the fault of a request to arm one. Raises ValueError with one sentence.

    `seconds` is required by the modes that wait. `lose_answer: true` takes the answer away from a mode that gives one:
    a stale read is only asked for by a caller who does not know.
    """
    reference, mode, seconds = body.get("reference"), body.get("mode"), body.get("seconds", 0)
    if not isinstance(reference, str) or not reference:
        raise ValueError("reference must be a text")
    if not isinstance(mode, str) or mode not in PLANS:
        raise ValueError(f"mode must be one of {', '.join(PLANS)}")
    plan = PLANS[mode]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or not 0 <= seconds <= SECONDS_MAX:
        raise ValueError(f"seconds must be a number from 0 to {SECONDS_MAX:.0f}")
    if (plan.commit_late or plan.hold_answer or plan.stale_reads) and not seconds:
        raise ValueError(f"{mode} needs seconds above 0")
    if body.get("lose_answer") is True:
        plan = plan._replace(status=None)
    return reference, Fault(plan, float(seconds))
