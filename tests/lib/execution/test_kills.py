"""A slice of the storm of kills; `make kills` runs ten thousand attempts."""

import random

import pytest

from tests.lib.execution.kills import run

ATTEMPTS = 300


@pytest.mark.timeout(300)
@pytest.mark.promise("S95", part="no zombie and no process is left after random kills; ten thousand attempts are a command")
def test_under_random_kills_each_attempt_has_one_report_and_nothing_is_left() -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    found = run(ATTEMPTS, seed)
    assert not found.wrong, (seed, found.wrong)
    assert found.ends.total() == ATTEMPTS
