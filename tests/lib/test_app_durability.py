"""When a request is durable, whose transaction it lives in, and what an App opens when."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from settled import App, ConfigurationError, LedgerUnavailableError, OperationConflictError, Outcome, Status
from settled.store.audit import verify
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, locked, run, spawn
from tests.lib.children import Child
from tests.lib.store.ledgers import another_program

BELL = """
import select, sys
from pathlib import Path
from settled.doorbell import Doorbell
bell = Doorbell.listen(Path(sys.argv[1]), "listener")
print("ready")
for _ in sys.stdin:
    rung = bool(select.select([bell], [], [], 0.3)[0])
    bell.drain()
    print(rung)
"""


# Dies by SIGKILL once it has rung for its second request, and so before it commits that: the bell is known by then.
RINGS_AND_DIES = """
import os, signal, sys, paying
from settled.doorbell import Bells
paying.submit({"invoice_id": "INV-1"})
os.utime(paying.app.ledger.run_directory, (0, 0))  # as if its files had been there for long: only such a listing is kept
paying.app.shell.ring()
def die_after_the_ring(frame, event, _):
    if frame.f_code is not Bells.ring.__code__:
        return None
    def at_its_end(frame, event, _):
        if event == "return":
            os.kill(os.getpid(), signal.SIGKILL)
        return at_its_end
    return at_its_end
sys.settrace(die_after_the_ring)
paying.submit({"invoice_id": "INV-2"})
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P01")
def test_a_request_is_durable_when_submit_returns(bench: Bench) -> None:
    code = "import os, paying; paying.submit({'invoice_id': 'INV-1042'}); os._exit(9)"
    run(code, database=bench.app.ledger.path, expect=9)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, op.attempts) == (Status.PREPARED, None, 0)
    assert bench.types() == ["submitted"]


@pytest.mark.promise("P01", part="killed between the ring and the commit, a submission leaves nothing and holds up nobody")
def test_a_submitter_that_is_killed_after_it_has_rung_has_stored_nothing_and_holds_up_nobody(bench: Bench) -> None:
    with Child(BELL, bench.app.ledger.run_directory) as listener:
        assert listener.hear() == "ready"
        run(RINGS_AND_DIES, database=bench.app.ledger.path, expect=-signal.SIGKILL)
        assert listener.ask("rung?") == "True"
    assert bench.submitted() == ["invoice:INV-1:capture"]
    assert bench.effect(lambda: None).execute(ARGUMENTS).status is Status.CONFIRMED
    assert verify(bench.app.ledger) == []


@pytest.mark.promise("P01")
def test_the_dispatch_is_committed_before_the_first_line_of_the_handler(bench: Bench) -> None:
    path = bench.app.ledger.path
    look = "SELECT status, attempt FROM operation", "SELECT type FROM event ORDER BY sequence"
    got: list[Any] = []
    bench.app.execute(bench.effect(lambda: got.extend(another_program(path, one) for one in look)), ARGUMENTS)
    assert got == [[["dispatched", 1]], [["submitted"], ["dispatched"]]]


@pytest.mark.promise("S08")
def test_a_submission_inside_the_callers_transaction_lives_and_dies_with_it(bench: Bench) -> None:
    calls: list[str] = []
    effect = bench.effect(lambda ctx: calls.append(ctx.operation_id), operation_id=lambda a: a["id"])
    worker = bench.worker()
    with bench.app.engine().connect() as connection:
        rolled_back = effect.submit({"id": "never"}, connection=connection)
        assert (rolled_back.status, rolled_back.created) == (Status.PREPARED, True)
        connection.rollback()
        assert bench.submitted() == []
        effect.submit({"id": "one"}, connection=connection)
        effect.submit({"id": "two"}, connection=connection)
        again = effect.submit({"id": "one"}, connection=connection)
        assert again.created is False
        with pytest.raises(OperationConflictError):
            effect.submit({"id": "one", "amount": 2}, connection=connection)
        assert connection.execute(sa.text("SELECT count(*) FROM operation")).scalar() == 2
        assert bench.submitted() == []  # another connection sees nothing before the commit
        connection.commit()
    assert worker.turn() == 2
    assert sorted(calls) == ["one", "two"]
    assert verify(bench.app.ledger) == []


@pytest.mark.promise("S08", part="a doorbell rung at the commit and not at a rollback; a connection to another database")
def test_a_connection_to_another_database_is_refused_and_a_rollback_rings_no_bell(bench: Bench, tmp_path: Path) -> None:
    effect = bench.effect(lambda: None)
    other = App(tmp_path / "other.db")
    other.create_database()
    with other.engine().connect() as connection, pytest.raises(ValueError, match=r"other\.db"):
        effect.submit(ARGUMENTS, connection=connection)
    other.close()
    with Child(BELL, bench.app.ledger.run_directory) as listener, bench.app.engine().connect() as connection:
        assert listener.hear() == "ready"
        effect.submit(ARGUMENTS, connection=connection)
        connection.rollback()
        assert listener.ask("rung?") == "False"
        effect.submit(ARGUMENTS, connection=connection)
        connection.commit()
        assert listener.ask("rung?") == "True"


@pytest.mark.promise("S14")
def test_times_are_aware_and_stored_as_whole_microseconds_utc(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    for naive in (datetime(2027, 1, 1), date(2027, 1, 1), "2027-01-01T00:00:00Z", 1.0):  # noqa: DTZ001 - the case under test
        with pytest.raises(ValueError, match="deadline"):
            effect.submit(ARGUMENTS, deadline=naive)  # type: ignore[arg-type]
    assert bench.submitted() == []
    summer = timezone(timedelta(hours=2))
    op = effect.submit(ARGUMENTS, deadline=datetime(2027, 3, 29, 2, 30, tzinfo=summer))
    assert op.deadline == datetime(2027, 3, 29, 0, 30, tzinfo=UTC)
    assert op.deadline.utcoffset() == timedelta(0)
    assert op.to_json()["deadline"] == "2027-03-29T00:30:00Z"
    stored = another_program(bench.app.ledger.path, "SELECT deadline_us, typeof(deadline_us), typeof(created_us) FROM operation")
    assert stored == [[1_806_280_200_000_000, "integer", "integer"]]


@pytest.mark.promise("S14", part="one instant in three zones, whatever the zone of the host")
def test_one_instant_in_three_zones_is_stored_once_in_a_host_of_another_zone(bench: Bench) -> None:
    code = """
import sys
from datetime import datetime
import paying
for number, text in enumerate(["2026-03-29T02:30:00+02:00", "2026-03-29T00:30:00+00:00", "2026-03-28T16:30:00-08:00"]):
    op = paying.submit({"invoice_id": str(number)}, deadline=datetime.fromisoformat(text))
    print(op.to_json()["deadline"])
"""
    said = run(code, database=bench.app.ledger.path, extra={"TZ": "Asia/Kolkata"}).splitlines()
    assert said == ["2026-03-29T00:30:00Z"] * 3
    assert another_program(bench.app.ledger.path, "SELECT count(DISTINCT deadline_us) FROM operation") == [[1]]


@pytest.mark.promise("X3", part="submit")
def test_without_a_store_nothing_is_accepted(bench: Bench) -> None:
    effect = bench.effect(lambda: None, app=bench.impatient())
    with locked(bench), pytest.raises(LedgerUnavailableError) as refused:
        effect.submit(ARGUMENTS)
    assert refused.value.exit_code == 75
    assert bench.submitted() == []
    assert effect.submit(ARGUMENTS).created


@pytest.mark.promise("D32", "S45", part="asubmit never blocks the caller's loop")
def test_a_loop_goes_on_while_a_submission_waits_for_a_locked_store(bench: Bench) -> None:

    effect = bench.effect(lambda: None)

    async def main() -> Any:
        with locked(bench) as holder:
            submission = asyncio.create_task(effect.asubmit(ARGUMENTS))
            for _ in range(20):  # while it waits; a loop that it held up would come here only after it has given up
                await asyncio.sleep(0.01)
                assert not submission.done()
            holder.kill()
            return await submission

    assert asyncio.run(main()).created


@pytest.mark.promise("D25", part="threads and submissions only")
def test_many_threads_that_submit_one_request_at_once_make_one(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    start, created = threading.Barrier(16), list[bool]()

    def submit() -> None:
        start.wait()
        created.append(effect.submit(ARGUMENTS).created)

    threads = [threading.Thread(target=submit) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(created), sum(created)) == (16, 1)
    assert bench.types() == ["submitted"]


@pytest.mark.promise("D64", part="what an import costs: no settings, no scheduler, no migrations; types ship")
def test_importing_settled_imports_neither_settings_nor_scheduler_nor_migrations(tmp_path: Path) -> None:
    code = """
import sys
import settled
from pathlib import Path
slow = ("pydantic", "pydantic_settings", "apscheduler", "alembic", "click", "rich", "settled_worker", "settled_cli")
print([name for name in slow if name in sys.modules])
print(Path(settled.__file__).with_name("py.typed").exists())
"""
    assert run(code).splitlines() == ["[]", "True"]
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("S85", part="an import opens nothing")
def test_importing_an_app_with_a_missing_ledger_makes_no_file(tmp_path: Path) -> None:
    code = "import paying; print(paying.app.contracts.keys())"
    assert "capture_payment" in run(code, database=tmp_path / "no" / "such.db")
    assert os.listdir(tmp_path) == []
    code = "import paying; paying.submit({'invoice_id': '1'})"
    child = spawn(code, database=tmp_path / "such.db")
    _, err = child.communicate(timeout=60)
    assert "settled init" in err
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("S123", part="what App(database=) means against the flag and the environment")
def test_the_ledger_of_an_app_is_chosen_at_first_use_and_never_against_its_word(tmp_path: Path) -> None:
    mine = tmp_path / "a.db"
    code = """
import os, sys
from settled import App, ConfigurationError
app = App(sys.argv[1])
os.environ["SETTLED_DATABASE"] = sys.argv[2]
print(app.ledger.path == __import__("pathlib").Path(sys.argv[1]))
other = App(sys.argv[1])
other.flag = sys.argv[2]
try:
    other.ledger
except ConfigurationError as error:
    print(error.exit_code, sys.argv[1] in str(error), sys.argv[2] in str(error))
same = App(sys.argv[1])
same.flag = os.path.join(os.path.dirname(sys.argv[1]), ".", "a.db")
print(same.ledger.path.name)
"""
    assert run(code, mine, tmp_path / "b.db").splitlines() == ["True", "78 True True", "a.db"]
    assert issubclass(ConfigurationError, Exception)


def test_an_outcome_of_what_was_never_sent_is_none(bench: Bench) -> None:
    op = bench.effect(lambda: None).submit(ARGUMENTS)
    assert op.outcome is None
    assert Outcome.UNKNOWN not in (op.outcome,)
