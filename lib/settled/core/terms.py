"""The terms of a contract: the data of it that decisions use, stored with every dispatch.

A key retry and an absence must be allowed by the terms stored at the dispatch *and* by the current ones, so that a
redeployment can make a decision stricter and never looser.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from settled.core.limits import TERM_DEFAULTS as DEFAULT
from settled.core.moment import SECOND_US
from settled.core.words import Isolation


def seconds_us(seconds: float) -> int:
    """Return whole microseconds."""
    return round(seconds * SECOND_US)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A snapshot of one contract. Durations in microseconds; `window_us` None = the provider states no end."""

    name: str
    version: str = DEFAULT.version
    risk: str = DEFAULT.risk
    queue: str = DEFAULT.queue
    confirm_on: str = DEFAULT.confirm_on
    isolation: str = Isolation.PROCESS
    dispatch: str = "direct"
    announces_sending: bool = False
    timeout_us: int = seconds_us(DEFAULT.timeout)
    kill_grace_us: int = seconds_us(DEFAULT.kill_grace)
    has_key: bool = False
    key_guaranteed: bool = False
    window_us: int | None = None
    key_margin_us: int = seconds_us(DEFAULT.key_margin)
    has_reference: bool = False
    has_probe: bool = False
    has_postcondition: bool = False
    max_attempts: int = DEFAULT.max_attempts
    not_sent_attempts_max: int = DEFAULT.not_sent_attempts_max
    retry_initial_us: int = seconds_us(DEFAULT.retry_initial)
    retry_factor: float = DEFAULT.retry_factor
    retry_cap_us: int = seconds_us(DEFAULT.retry_cap)
    retry_jitter: float = DEFAULT.retry_jitter
    commit_horizon_us: int = 0
    read_lag_us: int = 0
    network_drain_us: int = seconds_us(DEFAULT.network_drain)
    probe_timeout_us: int = seconds_us(DEFAULT.probe_timeout)
    probe_attempts_max: int = DEFAULT.probe_attempts_max
    probe_initial_us: int = seconds_us(DEFAULT.probe_initial)
    probe_factor: float = DEFAULT.probe_factor
    probe_cap_us: int = seconds_us(DEFAULT.probe_cap)
    probe_jitter: float = DEFAULT.probe_jitter
    unknown_age_max_us: int = seconds_us(DEFAULT.unknown_age_max)
    unknown_outcome: str = "quarantine"
    concurrency: int | None = None
    rate_limit: float | None = None
    approval: bool = False
    result_retention: str = "store"
    store_error_text: bool = True
    sensitive_fields: tuple[str, ...] = ()

    @property
    def bounds_us(self) -> int:
        """How long after a fence the effect may still appear to a read: drain + horizon + read lag."""
        return self.network_drain_us + self.commit_horizon_us + self.read_lag_us

    @property
    def handed_off(self) -> bool:
        """Whether another service does the sending, so that no fence is ever possible."""
        return self.dispatch == "handoff"

    def to_text(self) -> str:
        """Return the canonical text that is stored and addressed by its content."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read a stored snapshot; a field that an older version did not write has its default."""
        stored: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        values["sensitive_fields"] = tuple(values.get("sensitive_fields", ()))
        return cls(**values)


def bounds_us(terms: Iterable[Terms]) -> int:
    """Return drain + horizon + read lag, each the longest that any of `terms` states."""
    every = list(terms)
    return (
        max((one.network_drain_us for one in every), default=0)
        + max((one.commit_horizon_us for one in every), default=0)
        + max((one.read_lag_us for one in every), default=0)
    )
