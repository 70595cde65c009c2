"""A caller that is interrupted between the commit of its claim and the start of its handler strands nothing."""

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from settled import App, ProbeResult, Status
from settled.core.errors import LedgerUnavailableError
from settled.core.limits import DEFAULTS
from settled.execution.calls import Calls
from settled.store.audit import verify


@pytest.mark.promise("S23", part="a dispatch that its caller never started has a way back")
def test_an_interrupt_between_the_claim_and_the_start_strands_nothing(tmp_path: Path) -> None:
    app, calls = App(tmp_path / "settled.db"), []

    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread")
    def pay(arguments: dict[str, int]) -> None:
        calls.append(arguments["n"])

    def interrupt_before_the_start(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is Calls.run.__code__:
            raise KeyboardInterrupt

    app.create_database()
    with pytest.raises(KeyboardInterrupt):
        sys.settrace(interrupt_before_the_start)
        try:
            app.execute("pay", {"n": 1})
        finally:
            sys.settrace(None)
    assert app.get("pay:1").status is Status.DISPATCHED
    op = app.execute("pay", {"n": 1})
    assert (op.status, op.attempts, calls) == (Status.CONFIRMED, 2, [1])
    assert [event.type for event in app.events("pay:1")][:3] == ["submitted", "dispatched", "never_entered"]
    for n in range(2, 2 * app.shell.limits.slots):  # no slot was leaked, and none is given twice
        app.execute("pay", {"n": n})
    assert verify(app.ledger) == []
    app.close()


@pytest.mark.promise("S111", part="a hold whose answer could not be recorded is given up at the next call")
def test_a_probe_whose_answer_could_not_be_recorded_is_asked_again(tmp_path: Path) -> None:
    app, asked = App(tmp_path / "settled.db", limits=replace(DEFAULTS, busy_timeout_seconds=0.2)), []
    app.create_database()
    other = app.ledger.module().connect(app.ledger.path, isolation_level=None, check_same_thread=False)

    @app.effect(name="pay", operation_id=lambda a: "pay:1", isolation="thread")
    def pay() -> None:
        raise ConnectionResetError("answer lost")

    @pay.probe
    def look() -> ProbeResult:
        asked.append(1)
        if len(asked) > 1:
            return ProbeResult.committed()
        other.execute("BEGIN IMMEDIATE")  # from the hold to the answer another program takes the ledger for itself
        return ProbeResult.unknown()

    app.execute("pay", {})
    with pytest.raises(LedgerUnavailableError):
        app.reconcile("pay:1")
    other.execute("ROLLBACK")
    other.close()
    op = app.reconcile("pay:1")
    assert op.status is Status.CONFIRMED, op
    assert len(asked) == 2
    app.close()
