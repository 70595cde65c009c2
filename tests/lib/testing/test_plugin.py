"""The pytest plugin, used by a project that knows nothing but the fixtures' names."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from settled import App
from settled.clock import monotonic_us
from settled.core.errors import ConfigurationError
from settled.core.moment import SECOND_US
from settled.testing import FakeProvider, MovableClock, payment_contract
from settled_worker.testing.handworker import HandWorker
from tests.cli.terminal import environment
from tests.lib.store.ledgers import another_program

ARGUMENTS = {"payment": "INV-1", "amount_cents": 500, "currency": "eur"}
LIGHT = """
import sys
before = set(sys.modules)
import settled.testing.plugin, settled_worker.testing.plugin
heavy = {name.split(".")[0] for name in set(sys.modules) - before} & {"sqlalchemy", "pydantic", "apscheduler", "structlog", "alembic"}
ours = sorted(name for name in set(sys.modules) - before if name.startswith("settled"))
print(sorted(heavy), ours)
"""


def test_the_fixtures_make_a_worker_over_a_real_ledger_that_a_test_turns(
    settled_app: App, settled_worker: HandWorker, settled_clock: MovableClock, fake_provider: FakeProvider
) -> None:
    effect = settled_app.register(payment_contract(fake_provider))
    fake_provider.fail_next("fail_before_commit")
    op = effect.submit(ARGUMENTS)
    assert settled_worker.turn() == 1
    assert settled_app.get(op.operation_id).status == "outcome_unknown"
    settled_worker.sweep("reconcile")
    assert settled_app.get(op.operation_id).status == "prepared" and settled_worker.turn() == 0
    settled_clock.advance(5)
    assert settled_worker.turn() == 1
    assert (settled_app.get(op.operation_id).status, fake_provider.count()) == ("confirmed", 1)


def test_settle_turns_until_nothing_is_left_to_do(settled_app: App, settled_worker: HandWorker, fake_provider: FakeProvider) -> None:
    effect = settled_app.register(payment_contract(fake_provider))
    fake_provider.fail_next("commit_late", seconds=20)
    op = settled_worker.settle(effect.submit(ARGUMENTS).operation_id)
    assert (op.status, op.attempts, fake_provider.count()) == ("confirmed", 1, 1)


@pytest.mark.promise("S78")
def test_the_helpers_work_on_a_real_file_and_let_days_pass_without_waiting(
    settled_app: App, settled_worker: HandWorker, settled_clock: MovableClock, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    effect = settled_app.register(payment_contract(fake_provider, unknown_age_max=2 * 86_400.0))
    fake_provider.fail_reads("unavailable")
    fake_provider.fail_next("lose_answer")
    op = effect.submit(ARGUMENTS)
    began_us, before = monotonic_us(), settled_clock.now()
    op = settled_worker.settle(op.operation_id)
    passed = (settled_clock.now().boot_us - before.boot_us) / SECOND_US
    waited = (monotonic_us() - began_us) / SECOND_US
    assert (op.outcome, fake_provider.count()) == ("UNKNOWN", 1) and passed > 600 > waited
    ledger = settled_app.ledger.path
    assert ledger == tmp_path / "settled.db"
    assert another_program(ledger, "SELECT operation_id, status FROM operation") == [[op.operation_id, op.status.value]]
    with pytest.raises(ConfigurationError, match="memory"):
        App(":memory:").create_database()


def test_importing_the_plugins_costs_next_to_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", LIGHT], env=environment(), capture_output=True, text=True, timeout=60, check=True)
    heavy, _, ours = ended.stdout.strip().partition("] ")
    assert heavy == "[" and "settled.store" not in ours and "settled.app" not in ours, ended.stdout


@pytest.mark.timeout(120)
def test_a_project_of_its_own_finds_the_fixtures_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent(
            """
            from settled.testing import payment_contract

            def test_mine(settled_app, settled_worker, fake_provider):
                effect = settled_app.register(payment_contract(fake_provider))
                fake_provider.fail_next("lose_answer")
                op = effect.submit({"payment": "1", "amount_cents": 1, "currency": "eur"})
                assert settled_worker.settle(op.operation_id).status == "confirmed" and fake_provider.count() == 1
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0 and "1 passed" in ended.stdout, ended.stdout + ended.stderr
