"""Hold each contract to its `rate_limit` of starts per second, per ledger, over all workers."""

from collections.abc import Sequence

from settled.core.moment import SECOND_US, Moment
from settled.shell import Shell
from settled.store.notes import read_note, write_note
from settled.store.transaction import Transaction


def starts_allowed(transaction: Transaction, contract: str, rate: float, now: Moment, limit: int) -> int:
    """Return how many starts the rate allows now, at most `limit`. Up to one second's worth may come together."""
    first = _next_start_us(transaction, contract, rate, now)
    if now.boot_us < first:
        return 0
    return min(limit, int((now.boot_us - first) * rate / SECOND_US) + 1)


def note_starts(shell: Shell, transaction: Transaction, started: Sequence[str], now: Moment) -> None:
    """Remember starts of contracts that have a rate."""
    rates = {contract: rate for contract in set(started) if (rate := shell.terms_here(contract).rate_limit) is not None}
    for contract, rate in rates.items():
        following = _next_start_us(transaction, contract, rate, now) + round(started.count(contract) * SECOND_US / rate)
        write_note(transaction, f"rate:{contract}", f"{now.boot_id}:{following}")


def _next_start_us(transaction: Transaction, contract: str, rate: float, now: Moment) -> int:
    """Return when the next start is due by the boot clock, never further back than one burst."""
    burst_us = round((max(1, int(rate)) - 1) * SECOND_US / rate)
    boot_id, _, stored = (read_note(transaction, f"rate:{contract}") or "").partition(":")
    earliest = now.boot_us - burst_us
    return max(earliest, int(stored)) if boot_id == now.boot_id else earliest
