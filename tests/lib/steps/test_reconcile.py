"""What the reconcile step leaves alone, and what a probe that cannot be asked must not spend."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import ConfigurationError, Outcome, ProbeResult, Status
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, guaranteed, run
from tests.lib.store.ledgers import another_program


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


def lost() -> None:
    raise ConnectionResetError


@pytest.mark.promise("D40", part="a contract without a probe")
def test_reconcile_of_a_quarantined_row_without_a_probe_changes_nothing(bench: Bench) -> None:
    bench.app.execute(bench.effect(lost), ARGUMENTS)
    before = bench.app.get(OPERATION_ID)
    assert before.status is Status.QUARANTINED
    assert bench.app.reconcile(OPERATION_ID) == before
    bench.clock.advance(3600)
    bench.worker().reconcile()
    assert bench.app.get(OPERATION_ID) == before


@pytest.mark.promise("D40", part="a contract without a probe")
def test_reconcile_of_a_waiting_retry_without_a_probe_does_not_move_its_time(bench: Bench) -> None:
    bench.app.execute(bench.effect(lost, **guaranteed()), ARGUMENTS)
    before = bench.app.get(OPERATION_ID)
    assert (before.status, before.outcome) == (Status.PREPARED, Outcome.UNKNOWN)
    assert bench.app.reconcile(OPERATION_ID) == before


@pytest.mark.promise("D39", part="a probe that this process cannot start is no answer of the probe")
def test_a_probe_that_no_runner_could_import_is_an_error_and_spends_no_budget(bench: Bench) -> None:
    effect = bench.effect(lost, outcome_probe=lambda: ProbeResult.unknown(), probe_attempts_max=1)
    bench.app.execute(effect, ARGUMENTS)
    code = """
import sys
from settled import App, ConfigurationError, ProbeResult
app = App(sys.argv[1])
app.effect(name="capture_payment", operation_id=lambda a: "x", outcome_probe=lambda: ProbeResult.unknown())(lambda: None)
try:
    app.reconcile(sys.argv[2])
except ConfigurationError as error:
    print(type(error).__name__)
app.close()
"""
    assert run(code, bench.app.ledger.path, OPERATION_ID) == ConfigurationError.__name__
    assert bench.app.get(OPERATION_ID).status is Status.OUTCOME_UNKNOWN
    assert another_program(bench.app.ledger.path, "SELECT probes_spent FROM operation") == [[0]]


@pytest.mark.promise("P44", part="a hold keeps two from asking at once")
def test_two_askers_at_once_ask_once(bench: Bench) -> None:
    import threading

    asked, gate, inside = list[int](), bench.gate(), threading.Event()

    def probe() -> ProbeResult:
        asked.append(1)
        inside.set()
        gate.wait()
        return ProbeResult.committed(output=1)

    bench.app.execute(bench.effect(lost, outcome_probe=probe), ARGUMENTS)
    first = threading.Thread(target=bench.app.reconcile, args=(OPERATION_ID,))
    first.start()
    inside.wait()
    other = bench.again()
    bench.effect(lost, app=other, outcome_probe=probe)
    op = other.reconcile(OPERATION_ID)
    assert (op.status, op.reconciling) == (Status.OUTCOME_UNKNOWN, True)
    assert op.version == 3
    gate.set()
    first.join()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.reconciling, asked) == (Status.CONFIRMED, False, [1])
