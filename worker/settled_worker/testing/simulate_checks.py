"""The invariants of a simulated run, looked at after every step: the provider's own count against what the ledger says.

Promise: a violated one is named by its number. I1 to I6 are the protocol's own (docs/states.md); I8 and I9 are of this simulation.
"""

from typing import Final

from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import SETTLED, Status
from settled.shell import Shell
from settled.store import audit
from settled.store.audit_operations import audit_one
from settled.store.findings import Findings
from settled.store.ledger import Ledger
from settled.store.reads import counts, read_events, read_row
from settled.store.transaction import Transaction
from settled_worker.testing.simulate_world import World

INVARIANTS: Final = {
    "I1": "at most one effect: without a key, a request leaves only while no other of its operation has committed or still can",
    "I2": "CONFIRMED means that the provider counts an effect",
    "I3": "FAILED means that the provider counts none, and never will",
    "I4": "nothing is lost, and nothing is stuck: once faults are over each operation is settled or before a person",
    "I5": "a row never moves back, and a settled one only before a person",
    "I6": "each row is the fold of its events; chains, seals and counts hold",
    "I8": "what left the host was recorded before, and no power cut takes that away",
    "I9": "no step ends in an error that it should have dealt with",
}


class Violated(Exception):
    """An invariant does not hold."""

    def __init__(self, number: str, text: str) -> None:
        super().__init__(f"{number} ({INVARIANTS[number]}): {text}")
        self.number, self.text = number, text


class Checks:
    """What was seen of each operation so far. `references` are by row."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rows: dict[int, Row] = {}
        self.references: dict[int, tuple[str, str]] = {}
        self.sent: dict[int, int] = {}
        self.events = 0

    def submitted(self, row: Row) -> None:
        """Watch one more operation."""
        assert row.provider_reference is not None
        self.references[row.id] = (row.contract, row.provider_reference)

    def before_sending(self, row_id: int, attempt: int) -> None:
        """Look at a request that is about to leave."""
        contract, reference = self.references[row_id]
        if not self._world.contracts[contract].terms.key_guaranteed:
            committed, undecided = self._world.count(contract, reference), self._world.undecided(contract, reference)
            if committed or undecided:
                raise Violated("I1", f"{reference}: attempt {attempt} sends beside {committed} effects and {undecided} undecided requests")
        self.sent[row_id] = max(attempt, self.sent.get(row_id, 0))

    def look(self, shell: Shell) -> list[str]:
        """Look at everything; return a line for each event that is new."""
        lines: list[str] = []
        findings = Findings(10)
        with shell.ledger.read() as transaction:
            moved = [row for row in (self._read(transaction, row_id) for row_id in self.references) if self.rows.get(row.id) != row]
            for row in moved:
                seen = self.rows.get(row.id)
                fresh = read_events(transaction, row)[seen.sequence if seen is not None else 0 :]
                lines += [_line(row, event) for event in fresh]
                audit_one(transaction, row.id, findings, shell.ledger.module(), str)
                if seen is not None:
                    _not_back(seen, row)
                self.rows[row.id] = row
            if moved:
                _tally({(c, s): n for c, of in counts(transaction).items() for s, n in of.items()}, list(self.rows.values()), findings)
        if found := list(findings):
            raise Violated("I6", f"{found[0]}")
        for row in self.rows.values():
            self._truth(row)
        self.events += len(lines)
        return lines

    def _read(self, transaction: Transaction, row_id: int) -> Row:
        try:
            return read_row(transaction, row_id)
        except TypeError:
            raise Violated("I8", f"the operation {self.references[row_id][1]} was accepted, and is gone") from None

    def _truth(self, row: Row) -> None:
        contract, reference = self.references[row.id]
        count = self._world.count(contract, reference)
        if count > 1:
            raise Violated("I1", f"{reference} of {contract} has {count} effects")
        if row.status is Status.CONFIRMED and not count:
            raise Violated("I2", f"{reference} of {contract} is confirmed, and has no effect")
        if row.status in (Status.REJECTED, Status.CANCELLED) and count:
            raise Violated("I3", f"{reference} of {contract} is {row.status}, and has an effect")
        if self.sent.get(row.id, 0) > row.attempt:
            raise Violated("I8", f"{reference} of {contract}: attempt {self.sent[row.id]} was sent, the ledger knows of {row.attempt}")

    def whole(self, ledger: Ledger) -> None:
        """Audit the whole ledger."""
        if found := audit.verify(ledger):
            raise Violated("I6", f"{found[0]}")

    def at_the_end(self) -> None:
        """Look whether everything has come to an end."""
        for row in self.unsettled():
            raise Violated("I4", f"{row.operation_id} of {row.contract} is still {row.status}")

    def unsettled(self) -> list[Row]:
        """Return what is neither settled nor before a person: in quarantine, or held with a reason."""
        before_person = (Status.QUARANTINED, Status.PREPARED, Status.OUTCOME_UNKNOWN)
        return [row for row in self.rows.values() if row.status not in SETTLED and (row.status not in before_person or row.reason is None)]


def _not_back(seen: Row, row: Row) -> None:
    if row.sequence < seen.sequence or row.version < seen.version or row.attempt < seen.attempt:
        raise Violated("I5", f"{row.operation_id} moved back from {seen.sequence} events to {row.sequence}")


def _tally(kept: dict[tuple[str, str], int], rows: list[Row], findings: Findings) -> None:
    counted: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row.contract, row.status.value)
        counted[key] = counted.get(key, 0) + 1
    if kept != counted:
        findings.add(f"the tally says {kept}, there are {counted}")


def _line(row: Row, event: Event) -> str:
    told = {name: value for name, value in event.data.items() if name not in ("os_user", "request")}
    return f"{row.operation_id} {event.type} -> {event.status} attempt {event.attempt} at {event.at_us} {told}"
