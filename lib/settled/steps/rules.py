"""The rules about people that are in force: those of this process's settings, and those that the ledger's workers run under.

Promise: an operator whose settings name fewer risks than the worker's does not get past the worker's rule.
"""

import json

from settled.core.case import Case
from settled.shell import Shell
from settled.store.notes import read_note, write_note
from settled.store.transaction import Transaction

_NOTE = "two_person_risks"


def publish_rules(shell: Shell) -> None:
    """Tell every other process which risks need two persons. A worker does it when it starts; a copy is left as it is."""
    told = json.dumps(sorted(shell.rules.two_person_risks))
    with shell.ledger.read() as transaction:
        known = read_note(transaction, _NOTE) or "[]"
    if known != told and not shell.ledger.misplaced:
        with shell.ledger.write() as transaction:
            write_note(transaction, _NOTE, told)


def two_person_risks(shell: Shell, transaction: Transaction) -> frozenset[str]:
    """Return the risks that need two persons, by these settings or by the ledger's."""
    return shell.rules.two_person_risks | frozenset(json.loads(read_note(transaction, _NOTE) or "[]"))


def needs_two(shell: Shell, transaction: Transaction, case: Case) -> bool:
    """Return whether a resolution of this operation needs two persons: by the risk it was submitted with, or the current one."""
    risks = {case.row.risk} | ({case.current.risk} if case.current is not None else set())
    return bool(risks & two_person_risks(shell, transaction))
