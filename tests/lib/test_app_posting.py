"""Submissions that another process stores with its own commit: what the caller gets, and what never lies on the board."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from settled import App, EffectContract, Operation, Status
from settled.core.words import EventType
from settled.encryption import EncryptingCodec, new_key
from settled.store.audit import verify
from settled.store.transaction import Transaction
from tests.conftest import eventually
from tests.lib.children import Child
from tests.lib.test_app_durability import BELL

Submit = Callable[[], Operation]


def a_contract(**changes: Any) -> EffectContract:
    options: dict[str, Any] = {"name": "pay", "operation_id": lambda a: f"pay:{a['n']}", "isolation": "thread"} | changes
    return EffectContract(**options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = App(tmp_path / "settled.db")
    made.create_database()
    return tmp_path / "settled.db"


@contextmanager
def a_turn(path: Path) -> Iterator[App]:
    """Have the turn as another process, which writes nothing of its own."""
    holder, begun, go = App(path), threading.Event(), threading.Event()

    def held(_: Transaction) -> None:
        begun.set()
        assert go.wait(20)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(holder.ledger.together.write, held)
        assert begun.wait(20)
        try:
            yield holder
        finally:
            go.set()
            future.result(20)


def submitted_behind(path: Path, app: App, submit: Submit, *, is_posted: bool) -> Operation:
    """Submit while another process has the turn; return what the caller was given."""
    with ThreadPoolExecutor(1) as pool:
        with a_turn(path) as holder:
            told = pool.submit(submit)
            if is_posted:
                eventually(lambda: holder.ledger.board.waiting())
            else:
                eventually(lambda: app.ledger.turnstile._next._fd is not None and app.ledger.turnstile._owner is not None)
                assert holder.ledger.board.waiting() == []
        return told.result(20)


@pytest.fixture
def app(path: Path) -> App:
    app = App(path)
    app.register(a_contract())
    app.submit("pay", {"n": 0, "text": "the first of a process tells that its terms are stored"})
    return app


def test_what_the_caller_gets_is_what_the_ledger_has(path: Path, app: App) -> None:
    deadline = datetime.now(UTC) + timedelta(hours=1)
    submit = lambda: app.submit(  # noqa: E731
        "pay", {"n": 1, "text": "ü"}, priority=3, delay=60, deadline=deadline, metadata={"run": "r-1"}
    )
    op = submitted_behind(path, app, submit, is_posted=True)
    there = app.get(op.operation_id)
    same = ("operation_id", "status", "version", "fingerprint", "priority", "created_at", "updated_at", "due_at", "deadline", "queue")
    assert [getattr(op, name) for name in same] == [getattr(there, name) for name in same]
    assert op.created and op.status is Status.PREPARED and there.metadata == {"run": "r-1"}
    assert not app.submit("pay", {"n": 1, "text": "ü"}).created
    assert [event.type for event in app.events(op.operation_id)] == [EventType.SUBMITTED]
    assert verify(app.ledger) == []


def test_a_batch_is_posted_whole_and_keeps_its_order(path: Path, app: App) -> None:
    submit = lambda: app.submit_many([("pay", {"n": number}) for number in (3, 1, 2)])  # type: ignore[return-value]  # noqa: E731
    found: Any = submitted_behind(path, app, submit, is_posted=True)
    assert [op.operation_id for op in found] == ["pay:3", "pay:1", "pay:2"] and all(op.created for op in found)
    assert verify(app.ledger) == []


def test_the_workers_are_rung_for_once_it_is_stored(path: Path, app: App) -> None:
    with Child(BELL, app.ledger.run_directory) as listener:
        assert listener.hear() == "ready"
        assert submitted_behind(path, app, lambda: app.submit("pay", {"n": 1}), is_posted=True).created
        assert listener.ask("rung?") == "True"


def plain(path: Path, **changes: Any) -> App:
    app = App(path, codec=changes.pop("codec", None))
    app.register(a_contract(**changes))
    return app


NEVER_POSTED: dict[str, Callable[[Path], App]] = {
    "waits for an approval": lambda path: plain(path, approval="required"),
    "evidence may wait for it": lambda path: plain(path, provider_reference=lambda a: f"ref:{a['n']}"),
    "by name": lambda path: App(path),
}


@pytest.mark.parametrize("why", [*NEVER_POSTED])
def test_what_waits_for_more_than_a_row_waits_for_its_own_turn(path: Path, why: str) -> None:
    app = NEVER_POSTED[why](path)
    by_name = {"operation_id": "pay:0"} if why == "by name" else {}
    app.submit("pay", {"n": 0}, **by_name)
    options = {"operation_id": "pay:1"} if by_name else {}
    op = submitted_behind(path, app, lambda: app.submit("pay", {"n": 1}, **options), is_posted=False)
    assert op.created and op.operation_id == "pay:1"
    assert verify(app.ledger) == []


def test_a_text_that_is_encrypted_lies_on_the_board_as_it_does_in_the_ledger(path: Path) -> None:
    app = plain(path, codec=EncryptingCodec({"k1": new_key()}))
    app.submit("pay", {"n": 0})
    with ThreadPoolExecutor(1) as pool:
        with a_turn(path) as holder:
            told = pool.submit(app.submit, "pay", {"n": 1, "text": "secret-4711"}, metadata={"note": "secret-4712"})
            (seen,) = eventually(lambda: holder.ledger.board.waiting())
            assert b"pay:1" in seen.text and b"secret" not in seen.text
        assert told.result(20).created
    assert app.get("pay:1").metadata == {"note": "secret-4712"}
    assert verify(app.ledger, decode=app.shell.codec.decode) == []


def test_terms_that_are_not_known_to_be_stored_are_not_posted(path: Path) -> None:
    app = plain(path)
    assert submitted_behind(path, app, lambda: app.submit("pay", {"n": 1}), is_posted=False).created
    assert submitted_behind(path, app, lambda: app.submit("pay", {"n": 2}), is_posted=True).created
    with app.engine().begin() as connection:
        other = plain(path, version="2")
        other.submit("pay", {"n": 3}, connection=connection)
        connection.rollback()
    assert submitted_behind(path, other, lambda: other.submit("pay", {"n": 4}), is_posted=False).contract_version == "2"
    assert verify(app.ledger) == []
