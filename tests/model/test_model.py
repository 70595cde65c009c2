"""A bounded slice of the search that `make model` makes whole."""

import random

import pytest

from settled.core.case import Case
from tests.model.ledger import Ledger
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.search import search
from tests.model.setting import Setting, setting
from tests.model.world import World

SLICE = (
    setting("none", "thread"),
    setting("key", "process", rejects=False, power_cuts=False, hangs=False),
    setting("probe", "process", rejects=False, power_cuts=False, hangs=False, drain=0, commit=0, probes=1),
)
QUICK = [one for one in MUTATIONS if one.quick]  # found among a few thousand states; the others want tens of thousands


@pytest.mark.promise("S24", part="every reachable state of three settings keeps I1 to I6")
@pytest.mark.parametrize("searched", SLICE, ids=lambda one: one.name)
def test_every_reachable_state_keeps_the_invariants_and_leads_somewhere(searched: Setting) -> None:
    found = search(World(searched), states_max=200_000)
    assert found.violation is None, "\n".join([str(found.violation), *found.trace])
    assert found.complete and found.states > 1_000


class Whole(Ledger):
    """A ledger that forgets nothing and lets its clocks run on."""

    def _canonical(self, case: Case) -> Case:
        return case


@pytest.mark.parametrize("searched", [setting("both", "process"), setting("both", "thread", window=None)], ids=str)
def test_what_the_search_forgets_changes_no_decision(searched: Setting) -> None:
    """Both worlds take the same random steps; were something forgotten that a decision asks for, they would part."""
    for seed in range(20):
        draw = random.Random(seed)
        brief, whole = World(searched), World(searched)
        whole.ledger = Whole(searched)
        here, there = brief.first(), whole.first()
        for _ in range(60):
            steps, others = list(brief.steps(here)), list(whole.steps(there))
            assert [label for label, _, _ in steps] == [label for label, _, _ in others]
            if not steps:
                break
            chosen = draw.randrange(len(steps))
            here, there = brief.plain(steps[chosen][2]), whole.plain(others[chosen][2])
            mine, other = brief.ledger.row(here.ledger), whole.ledger.row(there.ledger)
            assert mine[13:15] == other[13:15] and mine.open_attempts == other.open_attempts and mine.unfenced == other.unfenced


@pytest.mark.promise("S24", part="rules of the core and of the shell around it, each taken out: the rest of them by make model")
@pytest.mark.parametrize("mutation", QUICK, ids=lambda one: one.name)
def test_a_rule_that_is_taken_out_is_missed(mutation: Mutation) -> None:
    with mutation.applied() as world:
        found = search(world, states_max=300_000)
    assert found.violation is not None and found.violation.startswith(mutation.caught), found
