"""A slice of the comparison: the policies in virtual time, with a few episodes of each fault."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.compare.chart import svg
from tests.compare.policies import FAULTS, POLICIES, Came, episodes

EPISODES = 4


@pytest.mark.filterwarnings("ignore:contract 'pay'")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", [name for name in POLICIES if name.startswith("settled")])
def test_settled_makes_no_second_effect_and_forgets_none(policy: str, fault: str) -> None:
    came = POLICIES[policy](policy, fault, episodes(fault, EPISODES, 3))
    assert (came.duplicates, came.omissions) == (0, 0)
    assert came.people == (EPISODES if policy == "settled, neither" else 0)


DOUBLED = [("naive retry", "lost answer"), ("verify, then retry", "late commit"), ("provider key", "expired key")]


@pytest.mark.parametrize(("policy", "fault"), DOUBLED)
def test_the_loops_make_two_effects_where_the_table_says_so(policy: str, fault: str) -> None:
    assert POLICIES[policy](policy, fault, episodes(fault, 20, 3)).duplicates > 10


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others() -> None:
    assert episodes("late commit", 5, 1) == episodes("late commit", 5, 1) != episodes("late commit", 5, 2)


def test_the_picture_holds_a_bar_for_each_cell() -> None:
    table = [Came(policy, fault, 10, 3, 2, 1) for policy in POLICIES for fault in FAULTS]
    bars = [one for one in ElementTree.fromstring(svg(table)).iter() if one.get("height") == "20"]
    assert len(bars) == 4 * len(POLICIES) * len(FAULTS)
