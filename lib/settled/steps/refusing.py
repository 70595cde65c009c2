"""Tell, and find out, which contracts a worker claims no more of because their handlers hang.

Promise: it is told in the ledger, so that health and an operator see it from any process; it decides nothing.
"""

import json
from collections.abc import Iterable

from settled.shell import Shell
from settled.store.notes import read_note, write_note
from settled.store.transaction import Transaction


def tell_refused(shell: Shell, worker: int, contracts: Iterable[str]) -> None:
    """Replace what is told of one worker."""
    with shell.ledger.write() as transaction:
        write_note(transaction, _key(worker), json.dumps(sorted(contracts)))


def refused_by(transaction: Transaction, worker: int) -> list[str]:
    """Return the contracts of which one worker claims no more. Ask it of living workers only."""
    told = read_note(transaction, _key(worker))
    return [] if told is None else list(json.loads(told))


def _key(worker: int) -> str:
    return f"refused:{worker}"
