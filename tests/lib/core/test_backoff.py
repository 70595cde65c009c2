"""How long to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.core.backoff import backoff_us
from settled.core.moment import SECOND_US


def wait(tries: int, *, initial: float = 1, factor: float = 2.0, cap: float = 5, jitter: float = 0.0, draw: float = 0.0) -> float:
    us = backoff_us(tries, initial_us=round(initial * SECOND_US), factor=factor, cap_us=round(cap * SECOND_US), jitter=jitter, draw=draw)
    return us / SECOND_US


@pytest.mark.promise("S50")
def test_the_wait_doubles_up_to_the_cap() -> None:
    assert [wait(tries) for tries in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


@pytest.mark.promise("S50")
def test_the_jitter_lengthens_the_wait_after_the_cap() -> None:
    assert wait(4, jitter=0.1, draw=0.5) == 5.25
    assert wait(1, jitter=0.1, draw=0.5) == 1.05


@pytest.mark.promise("S50")
@pytest.mark.parametrize("tries", [0, -1])
def test_there_is_no_wait_before_the_first_try(tries: int) -> None:
    with pytest.raises(ValueError, match=f"not {tries}"):
        wait(tries)


@pytest.mark.parametrize("tries", [1, 16, 47, 1024, 10**6])
@pytest.mark.parametrize("factor", [1.0, 2.0, 5.0])
def test_the_wait_stays_within_its_cap_however_often_was_tried(tries: int, factor: float) -> None:
    assert wait(tries, initial=5, factor=factor, cap=900) <= 900
    assert wait(10**6, initial=5, factor=factor, cap=900) == (5 if factor == 1 else 900)


@pytest.mark.parametrize(("initial", "factor", "waits"), [(0, 2.0, 0), (10, 2.0, 5), (1, 1.0, 1), (1, 0.5, 1), (1, 1.01, 5)])
def test_odd_policies_wait_as_they_say_after_many_tries(initial: float, factor: float, waits: float) -> None:
    assert wait(10**6, initial=initial, factor=factor) == waits


@given(st.integers(1, 10**7), st.floats(1, 10), st.integers(1, 10**12), st.integers(1, 10**12), st.floats(0, 1), st.floats(0, 0.999))
def test_the_wait_is_a_bounded_number_for_every_policy(
    tries: int, factor: float, initial_us: int, cap_us: int, jitter: float, draw: float
) -> None:
    waited = backoff_us(tries, initial_us=initial_us, factor=factor, cap_us=cap_us, jitter=jitter, draw=draw)
    assert min(initial_us, cap_us) <= waited <= cap_us * (1 + jitter)
