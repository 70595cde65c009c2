"""Two processes' worth of ledger objects on one file, in any order hypothesis finds: what they record stays one whole story.

The rules are the shell's own steps, each from one of two sides that know nothing of each other's caches, and either side may be
closed and opened again at any time. After each rule the rows are the folds of their events, and chains, seals and tally hold.
"""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from settled import App, EffectContract
from settled.core.errors import OperationConflictError, SettledError
from settled.core.evidence import ProbeResult
from settled.core.words import SETTLED, Status
from settled.execution.job import End, Job, Report
from settled.store import audit
from settled.store.reads import find_row
from settled.testing import VirtualClock
from tests.worker.harness import Hand, answered, ended, returned, silent, timed_out

NAMES = ("plain", "probed", "keyed")
SIDES = st.integers(0, 1)
NUMBERS = st.integers(0, 3)


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
        self.versions: dict[str, tuple[int, int, bool]] = {}

    @initialize()
    def open_both(self) -> None:
        self.apps = [self._app(), self._app()]
        self.apps[0].create_database()

    def _app(self) -> App:
        app = App(self.folder / "settled.db", clock=self.clock)
        for contract in contracts():
            app.register(contract)
        app.shell.draw = lambda: 0.0
        return app

    def _hand(self, side: int) -> Hand:
        hand = self.hands[side]
        if hand is None:
            hand = self.hands[side] = Hand(self.apps[side], slots=4)
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

    @rule(side=SIDES)
    def claim(self, side: int) -> None:
        hand = self._hand(side)
        self.jobs += [(side, hand, job) for job in hand.step().jobs]

    @rule(which=st.integers(0, 20), how=st.sampled_from(("returned", "timed out", "rejected", "raised", "not sent", "late")))
    def end(self, which: int, how: str) -> None:
        """End a running attempt; one of a side that was restarted meanwhile tells nobody."""
        if not self.jobs:
            return
        side, hand, job = self.jobs[which % len(self.jobs)]
        now = self.clock.now()
        if how != "timed out":  # whose code goes on, and may still tell
            self.jobs.remove((side, hand, job))
        if hand is not self.hands[side]:
            return
        reports: dict[str, Report] = {
            "returned": returned(job, now, {"n": 1}),
            "timed out": timed_out(job, now),
            "rejected": ended(job, End.REJECTED, now, error_class="EffectRejected"),
            "raised": ended(job, End.RAISED, now, error_class="ValueError"),
            "not sent": ended(job, End.NOT_SENT, now, error_class="NotSent"),
            "late": returned(job, now, {"n": 1}, late=True),
        }
        if how == "late" and job.key in hand.running:  # late is only what was given up before
            hand.step(timed_out(job, now))
        self.jobs += [(side, hand, more) for more in hand.step(reports[how]).jobs]

    @rule(side=SIDES, status=st.sampled_from(("committed", "absent", "pending", "unknown")), other=st.booleans())
    def probe(self, side: int, status: str, other: bool) -> None:
        hand = self._hand(side)
        before = len(hand.probes)
        hand.sweep("reconcile")
        answers = {
            "committed": ProbeResult.committed(),
            "absent": ProbeResult.not_committed(terminal=True),
            "pending": ProbeResult.pending(),
            "unknown": ProbeResult.unknown(),
        }
        for job in hand.probes[before:]:
            self.jobs += [(side, hand, more) for more in hand.step(answered(job, self.clock.now(), answers[status])).jobs]

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
            for number in range(4):
                found = []
                for app in self.apps:
                    with app.ledger.read() as transaction:
                        found.append(find_row(transaction, f"{name}:{number}"))
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
                if row.contract == "plain" and row.status is Status.PREPARED:
                    assert row.open_attempts == 0, "without a key nothing waits for a retry beside an open attempt"
                self.versions[row.operation_id] = (row.version, row.attempt, row.status in SETTLED)


TwoSides.TestCase.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.promise("S24", part="I5 and I6: guarded moves, rows that are folds, chains, seals and counts, from two sides in any order")
@pytest.mark.timeout(300)
class TestTwoSides(TwoSides.TestCase):
    pass

