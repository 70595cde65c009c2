"""What one search supposes: the contract, and the bounds that the world outside keeps. Times are whole ticks."""

from dataclasses import dataclass, replace
from typing import Any, Final, Self

from settled.core.terms import Terms
from settled.core.words import Isolation
from tests.lib.core.builders import terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A contract and its world. The bounds are both declared by the contract and kept by the provider.

    `timeout`: how long a handler in a process may run. `drain`: how long bytes stay under way. `commit`: how long the provider may
    take to decide. `lag`: how long a commit may be hidden from a read. `window`: how long the provider knows the key.
    """

    name: str
    probe: bool = False
    key: bool = False
    isolation: Isolation = Isolation.PROCESS
    confirm_on: str = "return"
    announces: bool = False
    timeout: int = 1
    drain: int = 1
    commit: int = 1
    lag: int = 1
    window: int | None = 4
    attempts: int = 2
    not_sent: int = 2
    probes: int = 2
    two_people: bool = False
    hangs: bool = True
    power_cuts: bool = True
    clock_steps: bool = False
    restores: bool = False
    rejects: bool = True

    @property
    def terms(self) -> Terms:
        """The contract that the core is told."""
        key = {"has_key": True, "key_guaranteed": True, "window_us": self.window, "key_margin_us": 0} if self.key else {}
        return terms(
            has_probe=self.probe, isolation=self.isolation, confirm_on=self.confirm_on, announces_sending=self.announces,
            timeout_us=self.timeout, kill_grace_us=0, network_drain_us=self.drain, commit_horizon_us=self.commit, read_lag_us=self.lag,
            max_attempts=self.attempts, not_sent_attempts_max=self.not_sent, probe_attempts_max=self.probes, **key,
        )  # fmt: skip

    @property
    def horizon(self) -> int:
        """So many ticks ago is as long ago as ever."""
        return max(self.drain + self.commit + self.lag, (self.window or 0) if self.key else 0) + 1

    @property
    def dispatches(self) -> int:
        """Where the search stops to claim: the second dispatch is the one that may be wrong."""
        return 2

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


PROBE_KEY: Final = {"none": {}, "probe": {"probe": True}, "key": {"key": True}, "both": {"probe": True, "key": True}}


def setting(contract: str, isolation: str = "process", **changes: Any) -> Setting:
    """Return a setting by the words of the table: what the contract has, and where its handler runs."""
    return Setting(name=f"{contract}, {isolation}", isolation=Isolation(isolation), **{**PROBE_KEY[contract], **changes})
