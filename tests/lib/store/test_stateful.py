"""Two processes' worth of ledger objects on one file, in any order hypothesis finds: what they record stays one whole story.

The rules are the shell's own steps, each from one of two sides that know nothing of each other's caches, and either side may be
closed and opened again at any time. After each rule the rows are the folds of their events, and chains, seals and tally hold.
Bugs that are planted in the store are found: see the end.
"""

import itertools
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from settled import App, EffectContract
from settled.core.errors import OperationConflictError, SettledError
from settled.core.evidence import ProbeResult
from settled.core.words import SETTLED, EventType, Status
from settled.execution.job import End, Job, Report
from settled.store import audit, writer
from settled.store.reads import find_row, read_events
from settled.store.sealing import Sealing
from settled.store.transaction import Transaction
from settled.testing import VirtualClock
from tests.worker.harness import Hand, answered, ended, returned, silent, timed_out

NAMES = ("plain", "probed", "keyed")
SIDES = st.integers(0, 1)
NUMBERS = st.integers(0, 1)


def contracts() -> list[EffectContract]:
    common: dict[str, Any] = {"isolation": "thread", "network_drain": 0, "handler": lambda arguments: None}
    key: dict[str, Any] = {"provider_idempotency_key": lambda a: f"key:{a['n']}", "provider_idempotency_guaranteed": True}
    return [
        EffectContract(name="plain", operation_id=lambda a: f"plain:{a['n']}", **common),
        EffectContract(name="probed", operation_id=lambda a: f"probed:{a['n']}", outcome_probe=silent, **common),
        EffectContract(name="keyed", operation_id=lambda a: f"keyed:{a['n']}", **key, **common),
    ]


class TwoSides(RuleBasedStateMachine):
    """Two sides, each with an App of its own on the same file, and a worker by hand on it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="settled-stateful-"))
        self.clock = VirtualClock()
        self.hands: list[Hand | None] = [None, None]
        self.apps: list[App] = []
        self.jobs: list[tuple[int, Hand, Job]] = []
        self.asked: list[tuple[int, Hand, Job]] = []
        self.started: set[tuple[int, int]] = set()
        self.versions: dict[str, tuple[int, int, bool]] = {}

    @initialize()
    def open_both(self) -> None:
        self.apps = [self._app(), self._app()]
        self.apps[0].create_database()
        for side, (name, number) in enumerate(itertools.product(NAMES, range(2))):
            self.apps[side % 2].submit(name, {"n": number})
        for side in range(2):  # so that every rule has something to meet from the first on
            self._step(side, self._hand(side))

    def _app(self) -> App:
        app = App(self.folder / "settled.db", clock=self.clock)
        for contract in contracts():
            app.register(contract)
        app.shell.draw = lambda: 0.0
        return app

    def _hand(self, side: int) -> Hand:
        hand = self.hands[side]
        if hand is None:
            hand = self.hands[side] = Hand(self.apps[side], slots=3)
        return hand

    def teardown(self) -> None:
        for hand in self.hands:
            if hand is not None:
                hand.close()
        for app in self.apps:
            app.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ what each side may do

    @rule(side=SIDES, name=st.sampled_from(NAMES), number=NUMBERS, other=st.booleans())
    def submit(self, side: int, name: str, number: int, other: bool) -> None:
        arguments = {"n": number, "other": True} if other else {"n": number}
        try:
            op = self.apps[side].submit(name, arguments)
            assert op.operation_id == f"{name}:{number}"
        except OperationConflictError as refused:
            assert refused.differs == "request"

    def _step(self, side: int, hand: Hand, *reports: Report) -> None:
        for job in hand.step(*reports).jobs:
            assert (job.row, job.attempt) not in self.started, "an attempt is started twice"
            self.started.add((job.row, job.attempt))
            self.jobs.append((side, hand, job))

    @rule(side=SIDES)
    def claim(self, side: int) -> None:
        self._step(side, self._hand(side))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 20), how=st.sampled_from(("returned", "timed out", "rejected", "raised", "not sent", "late")))
    def end(self, which: int, how: str) -> None:
        """End a running attempt; one of a side that was restarted meanwhile tells nobody."""
        side, hand, job = self.jobs[which % len(self.jobs)]
        if how != "timed out":  # whose code goes on, and may still tell
            self.jobs.remove((side, hand, job))
        if hand is not self.hands[side]:
            return
        if how == "late" and job.key in hand.running:  # late is only what was given up before
            hand.step(timed_out(job, self.clock.now()))
        self._step(side, hand, self._report(job, how))

    @precondition(lambda self: self.jobs)
    @rule(side=SIDES)
    def end_all(self, side: int) -> None:
        """Let all that runs on one side return at once: one batch, in which some rows may have been moved by the other side."""
        mine = [one for one in self.jobs if one[1] is self.hands[side]]
        self.jobs = [one for one in self.jobs if one not in mine]
        if mine:
            self._step(side, self._hand(side), *(self._report(job, "returned") for _, _, job in mine))

    def _report(self, job: Job, how: str) -> Report:
        now = self.clock.now()
        reports: dict[str, Report] = {
            "returned": returned(job, now, {"n": 1}),
            "timed out": timed_out(job, now),
            "rejected": ended(job, End.REJECTED, now, error_class="EffectRejected"),
            "raised": ended(job, End.RAISED, now, error_class="ValueError"),
            "not sent": ended(job, End.NOT_SENT, now, error_class="NotSent"),
            "late": returned(job, now, {"n": 1}, late=True),
        }
        return reports[how]

    @rule(side=SIDES)
    def ask(self, side: int) -> None:
        hand = self._hand(side)
        before = len(hand.probes)
        hand.sweep("reconcile")
        self.asked += [(side, hand, job) for job in hand.probes[before:]]

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 20), status=st.sampled_from(("committed", "absent", "pending", "unknown")))
    def answer(self, which: int, status: str) -> None:
        """Let a probe answer, whatever has become of its row meanwhile."""
        side, hand, job = self.asked.pop(which % len(self.asked))
        answers = {
            "committed": ProbeResult.committed(),
            "absent": ProbeResult.not_committed(terminal=True, healthy=True),
            "pending": ProbeResult.pending(),
            "unknown": ProbeResult.unknown(),
        }
        if hand is self.hands[side]:
            self._step(side, hand, answered(job, self.clock.now(), answers[status]))

    @rule(side=SIDES, name=st.sampled_from(("leases", "escalate", "checkpoint")))
    def sweep(self, side: int, name: str) -> None:
        self._hand(side).sweep(name)

    @rule(side=SIDES, name=st.sampled_from(NAMES), number=NUMBERS, verb=st.sampled_from(("cancel", "confirm", "reject", "authorize_retry")))
    def decide(self, side: int, name: str, number: int, verb: str) -> None:
        app = self.apps[side]
        try:
            op = app.get(f"{name}:{number}")
            said: dict[str, Any] = {"actor": "somebody", "reason": "looked"}
            if verb != "cancel":
                said |= {"evidence_reference": "the list", "expected_version": op.version}
            getattr(app, verb)(op.operation_id, **said)
        except SettledError:
            pass  # what is refused leaves everything as it was: the invariants look

    @rule(side=SIDES, name=st.sampled_from(NAMES), number=NUMBERS)
    def notice(self, side: int, name: str, number: int) -> None:
        with suppress(SettledError):
            self.apps[side].add_evidence(operation_id=f"{name}:{number}", source="webhook", result=ProbeResult.committed())

    @precondition(lambda self: self.jobs)
    @rule(side=SIDES, which=st.integers(0, 20))
    def notice_what_runs(self, side: int, which: int) -> None:
        """Hear of an effect while its attempt is under way: what the attempt's end is decided on has moved."""
        job = self.jobs[which % len(self.jobs)][2]
        self.apps[side].add_evidence(operation_id=job.operation_id, source="webhook", result=ProbeResult.committed())

    @rule(seconds=st.sampled_from((1.0, 40.0, 4000.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(side=SIDES, dies=st.booleans())
    def restart(self, side: int, dies: bool) -> None:
        """Close one side and open it anew, in good order or as a killed process leaves it."""
        hand, self.hands[side] = self.hands[side], None
        if hand is not None and dies:
            hand.presence.incarnation.release()
        elif hand is not None:
            hand.close()
        self.apps[side].close()
        self.apps[side] = self._app()

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def the_ledger_is_whole(self) -> None:
        if self.apps:
            assert audit.verify(self.apps[0].ledger) == []

    @invariant()
    def both_sides_see_the_same_and_nothing_moves_back(self) -> None:
        if not self.apps:
            return
        for name in NAMES:
            for number in range(2):
                found = []
                for app in self.apps:
                    with app.ledger.read() as transaction:
                        found.append(find_row(transaction, f"{name}:{number}"))
                        kinds = [event.type for event in read_events(transaction, found[-1])] if found[-1] is not None else []
                    assert EventType.RESULT_NOT_STORABLE not in kinds, "a move that is stale is no reason to lose a result"
                assert found[0] == found[1]
                row = found[0]
                if row is None:
                    assert f"{name}:{number}" not in self.versions
                    continue
                seen = self.versions.get(row.operation_id, (0, 0, False))
                assert row.version >= seen[0] and row.attempt >= seen[1]
                if seen[2]:
                    assert row.status in SETTLED or row.status is Status.QUARANTINED
                assert (row.status is Status.DISPATCHED) == (row.lease_owner is not None)
                assert row.status not in (Status.REJECTED, Status.CANCELLED) or row.open_attempts == 0
                assert row.contract == "keyed" or row.open_attempts <= 1, "without a key nothing is sent beside an open attempt"
                if row.contract == "plain" and row.status is Status.PREPARED:
                    assert row.open_attempts == 0, "without a key nothing waits for a retry beside an open attempt"
                self.versions[row.operation_id] = (row.version, row.attempt, row.status in SETTLED)


BOUNDS: dict[str, Any] = {
    "stateful_step_count": 30, "deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck),
}  # fmt: skip
TwoSides.TestCase.settings = settings(max_examples=20, **BOUNDS)


@pytest.mark.promise("S24", part="I5 and I6: guarded moves, rows that are folds, chains, seals and counts, from two sides in any order")
@pytest.mark.timeout(300)
class TestTwoSides(TwoSides.TestCase):
    pass


# ------------------------------------------------------------------ what is broken is found


def unguarded() -> sa.ClauseElement:
    """Move a row whatever has become of it: each name is asked for, and any value will do."""
    column = writer.operation.c
    statement = sa.update(writer.operation).where(column.id == writer.named("seen_id"))
    for name in writer._GUARD:
        statement = statement.where(sa.or_(column[name] == writer.named(f"seen_{name}"), column[name].is_not(None)))
    return statement.values({name: writer.named(f"new_{name}") for name in writer.STATE_COLUMNS})


def without_tally(self: Sealing, contract: str, status: str, count: int) -> None:
    """Forget that a row has moved."""


def all_but_the_stale(transaction: Transaction, written: list[Any]) -> bool:
    """Take a batch for recorded of which one row was moved by somebody else."""
    cursor = transaction.cursor
    for one in written:
        if transaction.statements[writer._guarded_update].run_rows(cursor, writer._UPDATE_VALUES, [one.update]) == 1:
            transaction.statements[writer.insert_event].run_rows(cursor, writer.EVENT_COLUMNS, one.events)
            if one.outputs:
                transaction.statements[writer.insert_payload].run_rows(cursor, writer.PAYLOAD_COLUMNS, one.outputs)
    return True


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(writer, "_guarded_update", unguarded), (Sealing, "count", without_tally), (writer, "_all_at_once", all_but_the_stale)],
    ids=["a move without its guard", "a tally that is not moved", "a stale move in a batch"],
)
@pytest.mark.timeout(300)
def test_a_bug_that_is_planted_in_the_store_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(TwoSides, settings=settings(max_examples=60, phases=[Phase.generate], **BOUNDS))  # type: ignore[no-untyped-call]
