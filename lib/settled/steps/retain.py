"""Decide how long the texts of settled operations are kept, and remove what is older."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from settled.core.canonical import canonical_text
from settled.core.moment import SECOND_US
from settled.shell import Shell
from settled.steps.known import must_know_contract
from settled.store.old_incidents import forget_incidents
from settled.store.retention import Group, Purged, purge, purge_runs

_DEFAULT: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """For how many seconds arguments and outputs are kept after an operation was last updated; None: for ever.

    `contracts` overrules `payload_seconds` for the contracts that it names. `incidents_seconds`: for how long closed incidents are kept.
    """

    payload_seconds: float | None = None
    incidents_seconds: float | None = None
    contracts: Mapping[str, float] = field(default_factory=dict)

    def groups(self, now_us: int) -> list[Group]:
        """Return what may be purged at a moment: a group for each contract of its own age, one for all others."""
        named = frozenset(self.contracts)
        groups = [Group(name, _before(now_us, seconds), frozenset({name})) for name, seconds in sorted(self.contracts.items())]
        if self.payload_seconds is not None:
            groups.append(Group(_rest(named), _before(now_us, self.payload_seconds), None, named))
        return groups


FOR_EVER: Final = Retention()


def _rest(named: frozenset[str]) -> str:
    """Name the group of all others by whom it leaves out: one that joins it later must be met by a walk from the start."""
    return f" {sha256(canonical_text(sorted(named), 'contracts').encode()).hexdigest()[:12]}" if named else _DEFAULT


def purge_old(shell: Shell, retention: Retention, *, batches_max: int) -> Purged:
    """Purge what is older than the settings keep, some batches of each group; the rest is for the next sweep."""
    examined = purged = 0
    for group in retention.groups(shell.clock.now().wall_us):
        done = purge(shell.ledger, group, batches_max=batches_max)
        examined, purged = examined + done.examined, purged + done.purged
    if retention.payload_seconds is not None:
        runs = purge_runs(shell.ledger, _before(shell.clock.now().wall_us, retention.payload_seconds))
        examined, purged = examined + runs, purged + runs
    return Purged(examined, purged)


def forget_old(shell: Shell, retention: Retention, *, batches_max: int) -> int:
    """Forget what was closed and told longer ago than the settings keep, some batches; return how many incidents and digests."""
    if retention.incidents_seconds is None:
        return 0
    return forget_incidents(shell.ledger, _before(shell.clock.now().wall_us, retention.incidents_seconds), batches_max=batches_max)


def purge_by_hand(
    shell: Shell,
    older_than_seconds: float,
    *,
    contract: str | None,
    dry_run: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Purged:
    """Purge what was settled longer ago, of one contract or of all. Raises ContractNotFoundError for a name nobody knows."""
    if contract is not None:
        with shell.ledger.read() as transaction:
            must_know_contract(shell, transaction, contract)
    before_us = _before(shell.clock.now().wall_us, older_than_seconds)
    group = Group("by hand", before_us, None if contract is None else frozenset({contract}))
    while contract is None and not dry_run and purge_runs(shell.ledger, before_us):
        pass
    return purge(shell.ledger, group, from_the_start=True, dry_run=dry_run, progress=progress)


def _before(now_us: int, seconds: float) -> int:
    return now_us - round(seconds * SECOND_US)
