"""A caller that is interrupted between the commit of its claim and the start of its handler strands nothing."""

from pathlib import Path

import pytest

from settled import App, ProbeResult, Status
from settled.core.errors import LedgerUnavailableError
from settled.execution.calls import Calls
from settled.store.audit import verify


@pytest.mark.promise("S23", part="a dispatch that its caller never started has a way back")
def test_an_interrupt_between_the_claim_and_the_start_strands_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, calls = App(tmp_path / "settled.db"), []

    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread")
    def pay(arguments: dict[str, int]) -> None:
        calls.append(arguments["n"])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    app.create_database()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Calls, "run", interrupted)
        app.execute("pay", {"n": 1})
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
    app, asked = App(tmp_path / "settled.db"), []

    @app.effect(name="pay", operation_id=lambda a: "pay:1", isolation="thread")
    def pay() -> None:
        raise ConnectionResetError("answer lost")

    @pay.probe
    def look() -> ProbeResult:
        asked.append(1)
        return ProbeResult.unknown() if len(asked) == 1 else ProbeResult.committed()

    app.create_database()
    app.execute("pay", {})

    def failing_answer(*_: object) -> None:
        raise LedgerUnavailableError("the ledger is busy. Nothing was recorded. Try again.")

    inside = app._inside()
    real = inside._owing._record_answer
    inside._owing._record_answer = failing_answer  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailableError):
        app.reconcile("pay:1")
    inside._owing._record_answer = real  # type: ignore[method-assign]
    op = app.reconcile("pay:1")
    assert op.status is Status.CONFIRMED, op
    assert len(asked) == 2
    app.close()
