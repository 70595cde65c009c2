"""What every action of the shell works with: the ledger, the clock, the contracts of this process, and chance.

Each action has the same four steps: read a row, decide in the core, do (call a handler, a probe, or nothing), record
through the one guarded writer.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from settled.clock import Clock
from settled.codec import Codec, PlainCodec
from settled.contract import EffectContract
from settled.core.case import Case
from settled.core.history import EMPTY
from settled.core.limits import DEFAULTS, Limits
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.rules import Rules
from settled.core.terms import Terms
from settled.doorbell import Bells, known_bells, ring_all
from settled.store.ledger import Ledger
from settled.store.pauses import read_paused
from settled.store.reads import highest_wall_us, read_history
from settled.store.snapshots import keep_terms, read_terms
from settled.store.transaction import Transaction


@dataclass(slots=True, kw_only=True)
class Shell:
    """The means of one process. Not frozen only for its cache of stored terms, which never change."""

    ledger: Ledger
    clock: Clock
    contracts: Mapping[str, EffectContract]
    limits: Limits = DEFAULTS
    codec: Codec = field(default_factory=PlainCodec)
    draw: Callable[[], float] = random.random
    rules: Rules = field(default_factory=Rules)
    authenticator: Callable[[], str] | None = None
    overrides: dict[str, dict[str, float | int]] = field(default_factory=dict)
    _stored: dict[int, Terms] = field(default_factory=dict)
    _kept: dict[str, tuple[Terms, int]] = field(default_factory=dict)
    _durable: dict[str, tuple[Terms, int]] = field(default_factory=dict)
    _overridden: dict[str, tuple[Terms, dict[str, float | int], Terms]] = field(default_factory=dict)

    def known_bells(self) -> Bells | None:
        """Return the workers' bells as they were at the last look, None for none."""
        return known_bells(self.ledger.run_directory)

    def ring(self, rung: Bells | None = None) -> None:
        """Wake the workers of the ledger, but not by the bells that were rung. Never raises, and is a hint: polling is the truth."""
        ring_all(self.ledger.run_directory, rung)

    def current_terms(self, contract: str) -> Terms | None:
        """Return the terms of a contract that is registered here."""
        found = self.contracts.get(contract)
        if found is None:
            return None
        change = self.overrides.get(contract)
        if not change:
            return found.terms
        base, by, changed = self._overridden.get(contract, (None, None, None))
        if changed is None or base is not found.terms or by is not change:  # `overrides` may be replaced while this process works
            changed = replace(found.terms, **change)  # type: ignore[arg-type]
            self._overridden[contract] = (found.terms, change, changed)
        return changed

    def terms_here(self, contract: str) -> Terms:
        """Return the terms of a contract that is known to be registered here."""
        terms = self.current_terms(contract)
        assert terms is not None
        return terms

    def keep_terms(self, transaction: Transaction, terms: Terms) -> int:
        """Return the id of the stored snapshot of `terms`, which is known from then on unless the transaction is rolled back."""
        known = self._kept.get(terms.name)
        if known is not None and known[0] is terms:
            return known[1]
        transaction.if_undone.append(self.forget_uncommitted)  # the ID would be another snapshot's then
        terms_id = keep_terms(transaction, terms.to_text())
        self._kept[terms.name], self._stored[terms_id] = (terms, terms_id), terms
        return terms_id

    def durable_terms(self, terms: Terms) -> int | None:
        """Return the id of the stored snapshot of `terms` where it is known that it was committed."""
        known = self._durable.get(terms.name)
        return known[1] if known is not None and known[0] is terms else None

    def note_durable(self, terms: Terms, terms_id: int) -> None:
        """Know that the snapshot of `terms` was committed."""
        if self.durable_terms(terms) is None:
            self._durable[terms.name] = (terms, terms_id)

    def forget_uncommitted(self) -> None:
        """Forget cached ids, of which some may never be committed. A decision of another thread keeps the terms that it was given."""
        self._kept, self._stored = {}, {}

    def stored_terms(self, transaction: Transaction, ids: set[int]) -> Mapping[int, Terms]:
        """Return stored snapshots by id."""
        stored = self._stored
        missing = ids - stored.keys()
        if missing:
            stored.update(read_terms(transaction, missing))
        return stored

    def plain_case(self, transaction: Transaction, row: Row, now: Moment) -> Case:
        """Return a case without history: enough for a first dispatch and for its plain return."""
        stored: Mapping[int, Terms] = self._stored
        if row.terms is not None and row.terms not in stored:
            stored = self.stored_terms(transaction, {row.terms})
        return Case(row=row, now=now, current=self.current_terms(row.contract), stored=stored, history=EMPTY)

    def full_case(self, transaction: Transaction, row: Row, now: Moment) -> Case:
        """Return a case with everything that a decision may turn on."""
        history = read_history(transaction, row)
        ids = {attempt.terms for attempt in history.attempts if attempt.terms is not None}
        stored = self.stored_terms(transaction, ids | (set() if row.terms is None else {row.terms}))
        return Case(
            row=row,
            now=now,
            current=self.current_terms(row.contract),
            stored=stored,
            history=history,
            wall_highest_us=highest_wall_us(transaction),
            draw=self.draw(),
            held=read_paused(transaction).holds(row.contract, row.queue),
        )
