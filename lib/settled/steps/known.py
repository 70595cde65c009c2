"""Know a contract by its name: what a person misspelt must not pass for something that has nothing to show."""

from settled.core.errors import ContractNotFoundError
from settled.shell import Shell
from settled.store import workers
from settled.store.pauses import known_contracts
from settled.store.transaction import Transaction


def must_know_contract(shell: Shell, transaction: Transaction, name: str) -> None:
    """Raise ContractNotFoundError for a name that is not registered here, never had an operation, and that no live worker lists."""
    known = known_contracts(transaction) | set(shell.contracts)
    if name not in known:
        known |= {listed for worker in workers.live(transaction) for listed in worker.contracts}
    if name not in known:
        raise ContractNotFoundError(name, tuple(known))
