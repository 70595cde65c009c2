"""Plant bugs in the worker's own code, and see within how many seeds the simulation finds each: `python -m tests.worker.planted 80`.

Each takes one rule out, as the mutations of the model do. Exits 1 where one is not found that is said to be.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from settled.core import decide_evidence
from settled.core.decide_end import End
from settled.execution import recorder
from settled.execution.recorder import Recorder
from settled.steps import claim, ends, recover, resolve
from settled.store import writer
from settled_worker import pump, sweeps
from settled_worker.testing.simulate import Simulator
from settled_worker.testing.simulate_plan import plan_of
from settled_worker.testing.simulate_runs import Run
from tests.model import mutations
from tests.model.mutations import MUTATIONS

RARE: Final = "rare: the model"
Patches = tuple[tuple[Any, str, Any], ...]


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug: what is replaced in which modules or classes, and the invariants that a run may see violated by it."""

    name: str
    numbers: str
    patches: Patches
    only_the_model: str = ""  # why the simulation does not find it, or not in 60 seeds

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Plant it while the block runs."""
        kept = [(owner, name, getattr(owner, name)) for owner, name, _ in self.patches]
        try:
            for owner, name, broken in self.patches:
                setattr(owner, name, broken)
            yield
        finally:
            for owner, name, whole in kept:
                setattr(owner, name, whole)


def _core(name: str) -> Patches:
    """Return what a mutation of the model replaces in the core."""
    return next(one.patches for one in MUTATIONS if one.name == name)


def _ends(was: End, becomes: End) -> Patches:
    broken = mutations._ends_as(was, becomes)
    return ((ends, "decide_end", broken), (recover, "decide_end", broken))


def _own_deadline(whole: Any) -> property:
    """A runner whose worker is dead goes on for ever."""
    return property(lambda self: None if not self.tell.__self__.alive else whole.fget(self))


def _unguarded() -> sa.ClauseElement:
    column = writer.operation.c
    statement = sa.update(writer.operation).where(column.id == writer.named("seen_id"))
    names = {name: writer.named(f"new_{name}") for name in writer.STATE_COLUMNS}
    for name in writer._GUARD:  # named, and true of every row
        statement = statement.where(sa.or_(column[name] == writer.named(f"seen_{name}"), column[name].is_not(None)))
    return statement.values(names)


def _started_now(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Judge an answer by when it arrives."""

    def recorded(shell: Any, transaction: Any, report: Any, worker: int, now: Any) -> Any:
        return whole(shell, transaction, report._replace(job=report.job._replace(claimed_boot_us=now.boot_us)), worker, now)

    return recorded


def _terminal_or_not(case: Any, result: Any) -> Any:
    weakness = _whole_weakness(case, result)
    return None if weakness is decide_evidence.Weakness.NOT_TERMINAL else weakness


def _cancel(case: Any, *_: Any) -> Any:
    return mutations._cancel_anyhow(case, "", "", "")


_whole_weakness = decide_evidence._weakness
_OBSERVED: Final = {recorder.Phase.CLAIMED: recorder.Phase.CLAIMED}
_OBSERVED_UNSENT: Final = {**_OBSERVED, recorder.Phase.ENTERED: recorder.Phase.ENTERED}


def _observe(self: Recorder, slot: int, row: int, attempt: int, *, announces_sending: bool = False) -> Any:
    """Read that an attempt was not entered (or has not sent), and take nothing away from it."""
    seen = self.read(slot)
    return None if seen is None or seen[:2] != (row, attempt) else seen.phase


PLANTED: Final = (
    Planted("an absence needs no fence", "I1 I3", _core("an absence needs no fence")),
    Planted("an absence need not wait for the network drain", "I1 I3", _core("an absence need not wait for the network drain")),
    Planted("an absence need not wait for the commit horizon", "I1 I3", _core("an absence need not wait for the commit horizon")),
    Planted("an absence need not wait for the read lag", "I1 I3", _core("an absence need not wait for the read lag")),
    Planted("an absence is judged by when it arrives", "I1 I3", ((pump, "record_answer", _started_now(pump.record_answer)),)),
    Planted("an absence counts at exactly the bound", "I1 I3", _core("an absence counts at exactly the bound"),
            "a microsecond that no drawn time falls on: the model"),
    Planted("unbound evidence is accepted", "I1 I2 I3", _core("unbound evidence is accepted")),
    Planted("an absence that is not terminal closes", "I1 I3", ((decide_evidence, "_weakness", _terminal_or_not),)),
    Planted("the key's window is not asked for", "I1", _core("the key's window is not asked for")),
    Planted("the window is asked for at the decision only, not at the claim", "I1",
            _core("the window is asked for at the decision only, not at the claim"), RARE),
    Planted("a claim sets no time by which to enter", "I1", ((claim, "decide_claim", mutations._no_enter_by),),
            "covered by the attempt's own deadline and the key's margin: the model"),
    Planted("a finite window is trusted in a thread", "I1", _core("a finite window is trusted in a thread")),
    Planted("a key is taken for guaranteed that is not", "I1", _core("a key is taken for guaranteed that is not")),
    Planted("a lost lease goes back to prepared", "I1", _ends(End.LEASE_LOST, End.NEVER_ENTERED)),
    Planted("a timeout is taken for a failure", "I3", _ends(End.TIMED_OUT, End.REJECTED)),
    Planted("an exception is taken for not sent", "I1 I3", _ends(End.RAISED, End.NOT_SENT)),
    Planted("a crash is taken for not sent", "I1 I3", _ends(End.CRASHED, End.NOT_SENT)),
    Planted("a stop is taken for not sent", "I1 I3", _ends(End.STOPPED, End.NOT_SENT)),
    Planted("a person may reject at any time", "I3", _core("a person may reject at any time"), RARE),
    Planted("a retry may be cancelled while an attempt is open", "I3 I9", ((resolve, "decide_cancel", _cancel),)),
    Planted("a retry whose window ends is not withdrawn", "I4", ((claim, "decide_claim", mutations._not_withdrawn),)),
    Planted("kept evidence is not merged", "I", _core("kept evidence is not merged"), RARE),
    Planted("nothing ends the waiting", "I4",
            ((sweeps, "decide_escalation", mutations._nothing), (decide_evidence, "_after_unusable", mutations._nothing)), RARE),
    Planted("entry is observed, not contested", "I1 I3 I8", ((Recorder, "revoke", _observe),), RARE),
    Planted("the deadline is the worker's alone", "I1", ((Run, "limit_us", _own_deadline(Run.limit_us)),), RARE),
    Planted("an end is written unguarded", "I", ((writer, "_guarded_update", _unguarded),),
            "the events' own key refuses it: tests/lib/store/test_stateful.py"),
)  # fmt: skip


def find(planted: Planted, seeds: int) -> tuple[int, str] | None:
    """Return the first seed that shows the bug, and the invariant; None where none of them does."""
    with planted.applied(), Simulator() as simulator:
        for seed in range(1, seeds + 1):
            violated = simulator.play(seed, plan_of(seed)).violated
            if violated is not None:
                return seed, violated.number
    return None


def main(arguments: list[str]) -> int:
    """Look for each, or for those whose name has one of the words."""
    seeds, words = int(arguments[0]), arguments[1:]
    missed = 0
    for one in PLANTED:
        if words and not any(word in one.name for word in words):
            continue
        begun = time.process_time()
        found = find(one, seeds)
        missed += found is None and not one.only_the_model
        said = one.only_the_model or "NOT FOUND" if found is None else f"seed {found[0]}, {found[1]}"
        print(f"{one.name:68} {said:16} {time.process_time() - begun:6.1f} s", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
