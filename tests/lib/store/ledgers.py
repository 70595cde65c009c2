"""Real ledgers for the tests of the store: made, filled through the store itself, and tampered with from another process."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType, Status
from settled.store.bodies import body_digest
from settled.store.creation import create_ledger
from settled.store.ledger import Ledger
from settled.store.requests import Request, store_request
from settled.store.writer import Move, Recorded, record
from tests.lib.children import LIB

NOW_US = 1_700_000_000_000_000


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000


def new_ledger(folder: Path, name: str = "settled.db", **more: Any) -> Ledger:
    """Create a ledger in `folder` and open it."""
    create_ledger(folder / name, at_us=NOW_US, **more)
    return Ledger(str(folder / name), monotonic_us=monotonic_us)


def a_request(operation_id: str = "op-1", **changes: Any) -> Request:
    """Return a request that differs from the plain one by `changes`."""
    plain = Request(
        operation_id=operation_id,
        contract="capture_payment",
        contract_version="1",
        queue="default",
        risk="high",
        fingerprint="json1:00",
        provider_key=f"key:{operation_id}",
        provider_reference=f"ref:{operation_id}",
        derived=True,
        priority=0,
        due_us=NOW_US,
        deadline_us=None,
        terms=None,
        arguments='{"secret_argument":1}',
    )
    return plain._replace(**changes)


def submit(ledger: Ledger, *operation_ids: str, **changes: Any) -> list[Row]:
    """Store plain requests in one transaction."""
    with ledger.write() as transaction:
        return [store_request(transaction, a_request(one, **changes), NOW_US).row for one in operation_ids]


def dispatched(row: Row, worker: int = 1, at_us: int = NOW_US + 1) -> Move:
    """Return the move of a claim."""
    return Move(row, [Event(EventType.DISPATCHED, Status.DISPATCHED, row.attempt + 1, at_us, {"worker": worker, "terms": 1, "due": None})])


def returned(row: Row, output: str | None = None, at_us: int = NOW_US + 2) -> Move:
    """Return the move of an accepted return."""
    data = {"id": "ch_1", "fence": "returned"} | ({} if output is None else {"out": body_digest(output)})
    event = Event(EventType.RETURNED, Status.CONFIRMED, row.attempt, at_us, data)
    return Move(row, [event], {} if output is None else {0: output})


def timed_out(row: Row, at_us: int = NOW_US + 2) -> Move:
    """Return the move of a timeout, after which nobody knows."""
    data = {"due": NOW_US + 10, "unknown_age_max": 1000, "fence": "process_killed"}
    return Move(row, [Event(EventType.TIMED_OUT, Status.OUTCOME_UNKNOWN, row.attempt, at_us, data)])


def write(ledger: Ledger, *moves: Move) -> list[Recorded]:
    """Record moves in one transaction of their own."""
    with ledger.write() as transaction:
        return record(transaction, moves)


def moved(ledger: Ledger, *moves: Move) -> list[Row]:
    """Record moves of which each must succeed; return the new rows."""
    rows = [recorded.row for recorded in write(ledger, *moves)]
    assert None not in rows
    return [row for row in rows if row is not None]


def settle(ledger: Ledger, *rows: Row) -> list[Row]:
    """Dispatch and confirm rows."""
    return moved(ledger, *(returned(row, '{"status":"captured"}') for row in moved(ledger, *(dispatched(row) for row in rows))))


def rows(ledger: Ledger, statement: str) -> list[list[Any]]:
    """Read through the ledger's own connection."""
    with ledger.read() as transaction:
        return [list(row) for row in transaction.cursor.execute(statement).fetchall()]


def change(ledger: Ledger, statement: str) -> str:
    """Run one statement in a write transaction of its own; return the error that it met, "" for none."""
    try:
        with ledger.write() as transaction:
            transaction.cursor.execute(statement)
    except ledger.module().Error as error:
        return str(error)
    return ""


ANOTHER_PROGRAM = """
import json, sys
from settled.store.sqlite_library import sqlite_module
connection = sqlite_module().connect(sys.argv[1], isolation_level=None)
try:
    for statement in json.loads(sys.argv[2]):
        rows = connection.execute(statement).fetchall()
    print(json.dumps([[value.hex() if isinstance(value, bytes) else value for value in row] for row in rows]))
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def another_program(path: Path, *statements: str) -> Any:
    """Run SQL from another process; return the rows of the last statement, or the error as one string."""
    return json.loads(run_python(ANOTHER_PROGRAM, str(path), json.dumps(statements)))


def run_python(code: str, *arguments: str, seconds: float = 60.0, extra: Sequence[Path] = ()) -> str:
    """Run Python code in a process of its own to its end; return what it printed."""
    environ = {"PYTHONPATH": ":".join(map(str, [LIB, *extra])), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT_TRIGGERS = tuple(f"DROP TRIGGER IF EXISTS {table}_no_{verb}" for table in ("event", "seal") for verb in ("update", "delete"))


def tampered(ledger: Ledger, *statements: str) -> Ledger:
    """Change stored bytes from another process, past the triggers and the CHECKs; return the ledger opened again."""
    ledger.close()
    answer = another_program(ledger.path, "PRAGMA ignore_check_constraints=ON", *WITHOUT_TRIGGERS, *statements)
    assert isinstance(answer, list), answer
    return Ledger(str(ledger.path), monotonic_us=monotonic_us)
