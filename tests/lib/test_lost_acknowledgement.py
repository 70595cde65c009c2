"""A caller whose claim was committed although the answer to the commit was lost."""

from pathlib import Path

import pytest

from settled import App, LedgerUnavailableError, Status
from settled.store.audit import verify
from tests.worker.faults import failing_commits


@pytest.mark.promise("D45", part="a caller: nothing was called, and the operation goes on at its next call")
@pytest.mark.parametrize("after", [True, False], ids=["committed", "not_committed"])
def test_a_lost_answer_to_the_claim_strands_nothing_and_calls_nothing(tmp_path: Path, after: bool) -> None:
    app, calls = App(tmp_path / "settled.db"), []

    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread")
    def pay(arguments: dict[str, int]) -> None:
        calls.append(arguments["n"])

    app.create_database()
    app.execute("pay", {"n": 0})  # registered before the fault
    with failing_commits(app.ledger, after=after), pytest.raises(LedgerUnavailableError):
        app.execute("pay", {"n": 1})
    assert calls == [0]
    op = app.execute("pay", {"n": 1})
    assert (op.status, op.attempts, calls) == (Status.CONFIRMED, 2 if after else 1, [0, 1])
    assert ("never_entered" in [event.type for event in app.events("pay:1")]) is after
    assert verify(app.ledger) == []
    app.close()
