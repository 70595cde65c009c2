"""Shorten the times of a contract and of its sandbox alike, so that a certification ends."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from settled.core.moment import SECOND_US
from settled.core.terms import Terms
from settled.testing.sandbox import Sandbox

BOUND_US: Final = 1_600_000
DRAIN_US: Final = 300_000
TIMEOUT_US: Final = 10_000_000
KEY_SECONDS: Final = 30.0
"""What is left of a key's window beside a call, its kill, the drain and the margin: time to start another worker in."""
FORGOTTEN_SECONDS: Final = 1.0


def scale(terms: Terms, key_seconds: float = KEY_SECONDS) -> dict[str, Any]:
    """Return the terms that a certification shortens, so that it ends: what is declared as 0 stays 0.

    `key_seconds`: for how long after the first call a finite key window lets another one start.
    """
    guarded = {
        "timeout_us": min(terms.timeout_us, TIMEOUT_US),
        "kill_grace_us": min(terms.kill_grace_us, 500_000),
        "network_drain_us": min(terms.network_drain_us, DRAIN_US),
        "key_margin_us": min(terms.key_margin_us, 200_000),
    }
    return {
        **guarded,
        "window_us": None if terms.window_us is None else min(terms.window_us, sum(guarded.values()) + round(key_seconds * SECOND_US)),
        "commit_horizon_us": min(terms.commit_horizon_us, BOUND_US),
        "read_lag_us": min(terms.read_lag_us, BOUND_US),
        "retry_initial_us": min(terms.retry_initial_us, 100_000),
        "retry_cap_us": min(terms.retry_cap_us, 400_000),
        "probe_initial_us": 250_000,
        "probe_factor": 1.0,
        "probe_cap_us": 250_000,
        "concurrency": None,
        "rate_limit": None,
    }


def has_a_window(terms: Terms) -> bool:
    """Whether the contract relies on a key, and for a time that it states."""
    return terms.key_guaranteed and terms.window_us is not None


@contextlib.contextmanager
def shortened_keys(sandbox: Sandbox, terms: Terms, scaled: Mapping[str, Any]) -> Iterator[None]:
    """Let the destination remember keys as long as the contract says that it does, shortened; for a moment where that is too much."""
    remembers = sandbox.key_window
    if remembers is not None and has_a_window(terms):
        claimed, played = (window_us / SECOND_US for window_us in (terms.window_us or 0, scaled["window_us"]))
        sandbox.key_window = played if remembers >= claimed else min(FORGOTTEN_SECONDS, remembers)
    try:
        yield
    finally:
        sandbox.key_window = remembers
