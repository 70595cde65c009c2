"""A ledger among threads, forks and programs: no connection crosses a fork, no second library enters the process."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from settled.core.errors import ConfigurationError
from settled.store.audit import verify
from settled.store.ledger import Ledger
from tests.lib.children import Child
from tests.lib.store.ledgers import another_program, monotonic_us, new_ledger, run_python, submit

FORKING = """
import multiprocessing, os, sys, time
from settled.store.ledger import Ledger
from settled.store.requests import Request, store_request
ledger = Ledger(sys.argv[1], monotonic_us=lambda: time.monotonic_ns() // 1000)
def submit(name, count):
    for number in range(count):
        request = Request(f"{name}-{number}", "c", "1", "default", "high", "json1:00", None, None, True, 0, None, 1, None, "{}")
        with ledger.write() as transaction:
            store_request(transaction, request, 1)
def mine():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == sys.argv[1]:
                found.append(number)
        except OSError:
            pass
    return set(found)
submit("before", 1)
"""

FORK = (
    FORKING
    + """
inherited = mine()
child = os.fork()
submit("child" if child == 0 else "parent", 1000)
if child == 0:
    import gc
    gc.collect()
    if not (inherited and inherited <= mine()):
        print("closed what was inherited", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
process = multiprocessing.get_context("fork").Process(target=submit, args=("multi", 100))
process.start()
submit("beside", 100)
process.join()
assert process.exitcode == 0
"""
)


@pytest.mark.promise("S85", part="child and parent submit after a fork, nothing inherited is closed")
def test_parent_and_forked_child_work_on_one_ledger_with_connections_of_their_own(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert run_python(FORK, str(ledger.path), seconds=100) == ""
    assert another_program(ledger.path, "SELECT count(*) FROM operation") == [[2201]]
    assert verify(ledger) == []


FORK_IN_TRANSACTION = (
    FORKING
    + """
import threading
inside, go = threading.Event(), threading.Event()
def hold():
    with ledger.write() as transaction:
        for number in range(400):
            body = "x" * 20_000
            request = Request(f"held-{number}", "c", "1", "default", "high", "json1:00", None, None, True, 0, None, 1, None, body)
            store_request(transaction, request, 1)
        inside.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    ledger.engine().dispose()
    sys.exit(0)
os.waitpid(child, 0)
go.set()
thread.join()
"""
)


@pytest.mark.parametrize("journal", ["delete", None])
def test_a_child_forked_beside_a_running_transaction_does_not_undo_it(tmp_path: Path, journal: str | None) -> None:
    ledger = new_ledger(tmp_path, journal=journal)
    assert run_python(FORK_IN_TRANSACTION, str(ledger.path)) == ""
    assert another_program(ledger.path, "SELECT count(*) FROM operation") == [[401]]
    assert verify(ledger) == []


@pytest.mark.promise("S84", part="a connection of another library is refused and the file never opened by it")
def test_a_connection_of_another_library_is_refused_before_the_file_is_touched(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    code = """
import sys, sqlalchemy as sa
from settled.core.errors import ConfigurationError
from settled.store.ledger import Ledger
ledger = Ledger(sys.argv[1], monotonic_us=lambda: 0)
engine = sa.create_engine("sqlite:///" + sys.argv[2])
if engine.dialect.dbapi is ledger.module():
    print("same")
    sys.exit()
with engine.connect() as connection:
    try:
        ledger.join(connection)
    except ConfigurationError as error:
        print("refused" if "app.engine()" in str(error) and error.exit_code == 78 else error)
"""
    said = run_python(code, str(ledger.path), str(tmp_path / "never.db")).strip()
    if said == "same":
        pytest.skip("this process has one SQLite library only")
    assert said == "refused"
    assert verify(ledger) == []


WRITER = """
import sys, time
from settled.store.ledger import Ledger
from settled.store.requests import Request, store_request
ledger = Ledger(sys.argv[1], monotonic_us=lambda: time.monotonic_ns() // 1000)
count = 0
print("ready", flush=True)
import select
while not select.select([sys.stdin], [], [], 0.002)[0]:  # without any pause a reader may starve: in this journal mode both cannot be in
    with ledger.write() as transaction:
        row = Request(f"w-{count}", "c", "1", "default", "high", "json1:00", None, None, True, 0, None, 1, None, "{}")
        store_request(transaction, row, 1)
    count += 1
print(count, flush=True)
"""

READER = """
import sys
import sqlite3
for _ in range(100):
    connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=60)
    connection.execute("SELECT count(*) FROM operation").fetchone()
    connection.close()
"""


@pytest.mark.promise("S84", part="a program with another library beside a writer: every commit is there afterwards")
def test_another_program_with_another_library_loses_no_commit_of_a_writer(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="delete")  # every SQLite may read it
    with Child(WRITER, ledger.path) as writer:
        assert writer.hear() == "ready"
        run_python(READER, str(ledger.path), seconds=240)
        writer.tell()
        written = int(writer.hear())
    assert written > 0
    assert another_program(ledger.path, "SELECT count(*) FROM operation") == [[written]]
    assert verify(ledger) == []


def test_two_ledger_objects_of_one_process_keep_each_others_locks(tmp_path: Path) -> None:
    """Closing any plain descriptor of the file would drop the locks of the transaction that runs."""
    first = new_ledger(tmp_path)
    with first.write():
        second = Ledger(str(first.path), monotonic_us=monotonic_us)
        assert second.meta == first.meta
        second.close()
        assert "locked" in another_program(first.path, "PRAGMA busy_timeout=0", "BEGIN IMMEDIATE", "SELECT 1")


KEEPS_LOCKS = """
import sys
sys.modules["pysqlite3"] = None
from settled.store.ledger import Ledger
first = Ledger(sys.argv[1], monotonic_us=lambda: 0)
with first.write():
    second = Ledger(sys.argv[1], monotonic_us=lambda: 0)
    second.engine()
    print("inside", flush=True)
    sys.stdin.readline()
"""


def test_an_affected_library_keeps_its_locks_while_it_looks_at_the_files_header(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="delete")
    with Child(KEEPS_LOCKS, ledger.path) as child:
        assert child.hear() == "inside"
        assert "locked" in another_program(ledger.path, "PRAGMA busy_timeout=0", "BEGIN IMMEDIATE", "SELECT 1")


def test_a_closed_ledger_opens_again(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    submit(ledger, "op-1")
    ledger.close()
    ledger.close()
    submit(ledger, "op-2")
    with ledger.engine().connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM operation")).scalar_one() == 2


@pytest.mark.promise("S85", part="a ledger object alone opens and makes nothing")
def test_naming_a_ledger_opens_nothing(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "absent" / "l.db"), monotonic_us=monotonic_us)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError):
        ledger.engine()
    assert list(tmp_path.iterdir()) == []
