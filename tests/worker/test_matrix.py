"""A slice of the crash matrix: all four ways to run a handler, each point and victim somewhere, against all destinations.

The whole is `make matrix`; what is tried and what must come of it stands in tests/worker/matrix.py.
"""

from itertools import product
from pathlib import Path

import pytest

from settled import Status
from tests.worker.apps.variants import MODES, VARIANTS
from tests.worker.matrix import CELLS, POINTS, VICTIMS, Cell, expected, impossible, missing, run

SLICE = [
    Cell("process", "entered", "both"),
    Cell("process", "mid_request", "worker"),
    Cell("process", "returned", "runner"),
    Cell("thread", "before_commit", "worker"),
    Cell("thread", "sending", "worker"),
    Cell("thread", "recorded", "worker"),
    Cell("async", "after_commit", "worker"),
    Cell("async", "returned", "worker"),
    Cell("async_process", "committed", "both"),
]


@pytest.mark.timeout(300)
@pytest.mark.promise("P46", "S40", "P73", part="the crash matrix: no second effect, none lost, no row stuck")
@pytest.mark.parametrize("cell", SLICE, ids=lambda cell: cell.name)
def test_killed_there_each_operation_ends_as_the_table_says(cell: Cell, tmp_path: Path) -> None:
    outcomes = run(cell, tmp_path)
    assert len(outcomes) == sum(missing(cell, variant) is None for variant in VARIANTS.values())
    wrong = [f"{one.variant}: {one.wrong} (is {one.status}, {one.effects} effects: {one.story})" for one in outcomes if one.wrong]
    assert not wrong, "\n".join(wrong)


def test_every_combination_is_tried_or_has_a_reason() -> None:
    for parts in product(MODES, POINTS, VICTIMS):
        assert (Cell(*parts) in CELLS) == (impossible(Cell(*parts)) is None)
    assert {cell.mode for cell in SLICE} == set(MODES)
    assert {cell.point for cell in SLICE} == set(POINTS)
    assert {cell.victim for cell in SLICE} == set(VICTIMS)


def test_the_table_never_expects_two_effects_nor_an_answer_to_what_nobody_knows() -> None:
    for cell, variant in product(CELLS, VARIANTS.values()):
        must = expected(cell, variant)
        assert must.effects <= 1 and (must.effects == 1 or must.status is Status.QUARANTINED)
        if variant.key != "kept" and variant.do != "never":
            assert must.arrivals <= 1, "without a guarantee what may have been done is not asked for again"
