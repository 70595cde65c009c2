"""The same evidence in any order, and told any number of times, gives the same outcome."""

import itertools
from collections.abc import Callable

import pytest

from settled.core.decide_end import End
from settled.core.evidence import ProbeResult
from settled.core.row import outcome_of
from settled.core.words import FenceBasis, Outcome, Status
from tests.lib.core.builders import DAY, Life, absent, committed, guaranteed, terms, unknown

GONE = FenceBasis.PROCESS_KILLED
Evidence = Callable[[Life], object]

ALWAYS: dict[str, Evidence] = {
    "committed": lambda life: life.probe(committed(provider_operation_id="pay-1")),
    "committed with another id": lambda life: life.probe(committed(provider_operation_id="pay-2"), source="webhook"),
    "absent": lambda life: life.probe(absent()),
    "weak absence": lambda life: life.probe(absent(healthy=False)),
    "pending": lambda life: life.probe(ProbeResult.pending()),
    "unknown": lambda life: life.probe(ProbeResult.unknown()),
    "late return of 1": lambda life: life.late(1, End.RETURNED),
    "late rejection of 1": lambda life: life.late(1, End.REJECTED),
}
SECOND: dict[str, Evidence] = {
    **{name: ALWAYS[name] for name in ("committed", "absent", "late return of 1", "late rejection of 1")},
    "late return of 2": lambda life: life.late(2, End.RETURNED),
    "late rejection of 2": lambda life: life.late(2, End.REJECTED),
}


def one_attempt() -> Life:
    return unknown(terms(has_probe=True, probe_attempts_max=1000)).wait(DAY)


def two_attempts() -> Life:
    """Return an operation whose two attempts, the budget of its life, are both open."""
    life = unknown(guaranteed(has_probe=True, max_attempts=2, probe_attempts_max=1000)).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(2).dispatch().end(End.TIMED_OUT, GONE)
    return life.wait(DAY)


def outcome_after(start: Callable[[], Life], evidence: list[Evidence]) -> tuple[Outcome | None, int]:
    life = start()
    observed = len(life.case.history.observations)
    for tell in evidence:
        tell(life)
        now = len(life.case.history.observations)
        assert now == observed + 1  # nothing told is lost, nothing is made up
        observed = now
    assert life.row.open_attempts == len(life.case.history.open_attempts)
    return outcome_of(life.row.status, life.row.open_attempts), life.row.duplicate_suspected


@pytest.mark.promise("S42", "D48")
@pytest.mark.parametrize(
    ("start", "names"),
    [
        *((one_attempt, names) for size in (1, 2, 3) for names in itertools.combinations(ALWAYS, size)),
        *((two_attempts, names) for size in (2, 3, 4) for names in itertools.combinations(SECOND, size)),
    ],
    ids=lambda value: value.__name__ if callable(value) else ", ".join(value),
)
def test_the_order_and_the_repetition_of_evidence_change_no_outcome(start: Callable[[], Life], names: tuple[str, ...]) -> None:
    known = ALWAYS | SECOND
    found: dict[object, list[tuple[str, ...]]] = {}
    for order in itertools.permutations(names):
        for told in (order, (*order, order[0]), (order[0], *order)):
            found.setdefault(outcome_after(start, [known[name] for name in told]), []).append(told)
    assert len(found) == 1, found


def failed(life: Life) -> bool:
    return life.row.status is Status.REJECTED


@pytest.mark.promise("S42")
@pytest.mark.parametrize("weaker", ["weak absence", "pending", "unknown"])
def test_weaker_evidence_never_turns_unknown_into_failed(weaker: str) -> None:
    life = one_attempt()
    for _ in range(20):
        ALWAYS[weaker](life.wait(DAY))
    assert not failed(life)
    assert outcome_of(life.row.status, life.row.open_attempts) is Outcome.UNKNOWN
