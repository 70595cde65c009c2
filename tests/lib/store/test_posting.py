"""Who waits for the turn has its requests stored by the process whose turn it is, and by nobody twice."""

import itertools
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from settled.core.errors import LedgerUnavailableError, OperationConflictError
from settled.core.limits import DEFAULTS
from settled.store.audit import verify
from settled.store.board import Board
from settled.store.creation import create_ledger
from settled.store.ledger import Ledger
from settled.store.posting import Post
from settled.store.reads import find_row
from settled.store.requests import Stored
from settled.store.transaction import Transaction
from tests.conftest import eventually
from tests.lib.children import Child
from tests.lib.store.ledgers import NOW_US, a_request, monotonic_us, new_ledger, rows, submit
from tests.lib.store.test_together import Interrupting, full, nothing, seals, storing

Work = Callable[[Transaction], Any]
Posting = Callable[..., "Future[Any]"]

# Another process that has the turn. At the first call of the function named by its third argument it ends or stops itself.
HOLDER = """
import os, signal, sys, time
from settled.store.ledger import Ledger
from settled.store import board, posting, together
ledger = Ledger(sys.argv[1], monotonic_us=lambda: time.monotonic_ns() // 1000)
there = {"answer": board.answer_all, "store_posts": posting.store_posts, "-": print}[sys.argv[2]]
def look(frame, event, _):
    if event == "call" and frame.f_code is getattr(there, "__code__", None):
        sys.setprofile(None)
        os.kill(os.getpid(), int(sys.argv[3]))
def held(transaction):
    print("in")
    input()
    sys.setprofile(look)
ledger.together.write(held)
print("out")
input()
"""


LISTENING = """
import sys
from pathlib import Path
from settled.store.board import Board
pin = Board(Path(sys.argv[1])).pin(b"not what could be stored")
print("pinned")
pin._file.listen(600)
print("woken", pin.take_down())
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def another(ledger: Ledger, busy_timeout_seconds: float = DEFAULTS.busy_timeout_seconds) -> Ledger:
    """Open the same ledger with a turnstile and a board of its own, as another process has it."""
    return Ledger(str(ledger.path), limits=replace(DEFAULTS, busy_timeout_seconds=busy_timeout_seconds), monotonic_us=monotonic_us)


def never(_: Transaction) -> Any:
    raise AssertionError("this was another process' to store")


def a_post(*operation_ids: str, at_us: int = NOW_US, **changes: Any) -> Callable[[], Post]:
    return lambda: Post([a_request(one, **changes) for one in operation_ids], at_us)


@contextmanager
def a_turn(ledger: Ledger, then: Work = lambda _: None) -> Iterator[Posting]:
    """Have the turn as one process, in which others may post; at the end do `then` and commit."""
    begun, go = threading.Event(), threading.Event()
    count = itertools.count(1)

    def held(transaction: Transaction) -> Any:
        begun.set()
        assert go.wait(20)
        return then(transaction)

    def post(work: Work, post: Callable[[], Post | None], by: Ledger | None = None) -> "Future[Any]":
        future = pool.submit((by or another(ledger)).together.write, work, nothing, post)
        expected = next(count)
        eventually(lambda: len(ledger.board.waiting()) == expected)
        return future

    with ThreadPoolExecutor(12) as pool:
        holder = pool.submit(ledger.together.write, held)
        assert begun.wait(20)
        try:
            yield post
        finally:
            go.set()
            with suppress(LedgerUnavailableError):
                holder.result(20)


def stored(ledger: Ledger) -> list[str]:
    return [row[0] for row in rows(ledger, "SELECT operation_id FROM operation ORDER BY operation_id")]


def test_who_leaves_the_turn_wakes_the_processes_that_wait(ledger: Ledger) -> None:
    ledger.together.write(storing("first"))
    path = next(ledger.run_directory.glob("board.*"))
    with Child(LISTENING, path) as child:
        assert child.hear() == "pinned"
        ledger.together.write(storing("mine"))
        assert child.hear() == "woken b''"


def test_what_others_post_is_stored_with_the_holders_own_commit_and_each_is_told_its_own(ledger: Ledger) -> None:
    with a_turn(ledger, storing("mine")) as post:
        one = post(never, a_post("one", priority=7, metadata='{"a":1}', trace="00-1-2-01"))
        two = post(never, a_post("two", "three", at_us=NOW_US + 5))
    told: list[Stored] = [*one.result(20), *two.result(20)]
    assert [each.created for each in told] == [True] * 3
    with ledger.read() as transaction:
        assert [find_row(transaction, each.row.operation_id) for each in told] == [each.row for each in told]
    assert stored(ledger) == ["mine", "one", "three", "two"]
    assert rows(ledger, "SELECT body FROM payload WHERE part = -1") == [['{"a":1}']]
    assert seals(ledger) == [4]
    assert verify(ledger) == [] and ledger.board.waiting() == []


def test_what_is_not_new_is_left_to_its_owner_and_disturbs_nobody(ledger: Ledger) -> None:
    submit(ledger, "taken")
    with a_turn(ledger) as post:
        good = post(never, a_post("good"))
        bad = post(storing("taken", fingerprint="json1:11"), a_post("new", "taken", fingerprint="json1:11"))
        repeated = post(storing("taken"), a_post("taken"))
    assert good.result(20)[0].created
    with pytest.raises(OperationConflictError):
        bad.result(20)
    assert not repeated.result(20).created
    assert stored(ledger) == ["good", "taken"]
    assert verify(ledger) == []


def test_who_is_answered_with_nothing_takes_its_own_turn(ledger: Ledger) -> None:
    submit(ledger, "taken")
    poster = another(ledger)
    had_turn: list[bool] = []

    def look(transaction: Transaction) -> Any:
        had_turn.append(poster.turnstile.is_ours)
        return storing("taken")(transaction)

    with a_turn(ledger) as post:
        told = post(look, a_post("taken"), by=poster)
    assert not told.result(20).created
    assert had_turn == [True] and poster.turnstile.missed == 0


def test_a_process_on_a_file_that_was_put_aside_stores_nothing_for_who_has_the_new_one(ledger: Ledger) -> None:
    submit(ledger, "before")
    ledger.engine()
    for name in (ledger.path.name, f"{ledger.path.name}-wal", f"{ledger.path.name}-shm"):
        ledger.path.with_name(name).rename(ledger.path.with_name(f"aside-{name}"))
    create_ledger(ledger.path, at_us=NOW_US)
    newer = another(ledger)
    newer.engine()
    with ThreadPoolExecutor(1) as pool:
        with a_turn(ledger):
            told = pool.submit(newer.together.write, storing("new"), nothing, a_post("new"))
            eventually(lambda: newer.turnstile._owner is not None or told.done())
            assert ledger.board.waiting() == []
        assert told.result(20)
    assert stored(newer) == ["new"]


def test_two_that_post_the_same_are_one_operation(ledger: Ledger) -> None:
    with a_turn(ledger) as post:
        both = [post(storing("same"), a_post("same")) for _ in range(2)]
    created = [one.result(20)[0].created if isinstance(one.result(), list) else one.result().created for one in both]
    assert sorted(created) == [False, True]
    assert stored(ledger) == ["same"] and verify(ledger) == []


def changed(change: Callable[[list[Any]], object]) -> bytes:
    """Return the text of one operation with one thing in it changed."""
    text = json.loads(Post([a_request("op")], NOW_US).text())
    change(text)
    return json.dumps(text).encode()


STRANGE = [
    b"[", b"null", b"{}", b"[]", b"[1]", b'["a"]', b"[" * 7000, b"\xff\xfe", b'[1,["op"]]',
    changed(lambda text: text.__setitem__(0, "5")),
    changed(lambda text: text[1][0].__setitem__(-1, "no hex")),
    changed(lambda text: text[1][0].append(1)),
    changed(lambda text: text[1][1].pop()),
    changed(lambda text: text[1][0].__setitem__(0, None)),
    changed(lambda text: text[1][1].__setitem__(0, "one")),
    changed(lambda text: text[1].__setitem__(2, [["a part", "a body"]])),
    changed(lambda text: text[1].__setitem__(2, [[0]])),
    changed(lambda text: text[1][0].__setitem__(0, "\ud800")),
    changed(lambda text: text[1][0].__setitem__(0, {"operation": "id"})),
    changed(lambda text: text[1][1].__setitem__(4, 10**30)),
    changed(lambda text: text[1][0].__setitem__(-3, "no terms")),
]  # fmt: skip


@pytest.mark.parametrize("text", STRANGE)
def test_a_text_that_says_nothing_is_answered_with_nothing_and_disturbs_nobody(ledger: Ledger, text: bytes) -> None:
    stranger = Board(another(ledger).run_directory / next(iter(_boards(ledger))))
    with a_turn(ledger, storing("mine")) as post:
        good = post(never, a_post("good"))
        pin = stranger.pin(text)
    assert good.result(20)[0].created
    assert pin is not None and pin.take_down() == b""
    assert stored(ledger) == ["good", "mine"] and verify(ledger) == []
    stranger.close()


def _boards(ledger: Ledger) -> Iterator[str]:
    ledger.engine()
    ledger.board.waiting()
    return (path.name for path in ledger.run_directory.glob("board.*"))


def test_where_the_commit_fails_nobody_is_answered_and_each_stores_its_own(ledger: Ledger) -> None:
    with a_turn(ledger, full) as post:
        one = post(storing("one"), a_post("one"))
    assert one.result(20)[0].created  # by itself, once the turn was its own
    assert stored(ledger) == ["one"] and seals(ledger) == [1]


@pytest.mark.parametrize(("at", "is_there"), [("store_posts", False), ("answer", True)])
def test_a_holder_that_is_killed_leaves_the_request_to_its_owner_and_it_is_stored_once(ledger: Ledger, at: str, is_there: bool) -> None:
    poster = another(ledger)
    with Child(HOLDER, ledger.path, at, int(signal.SIGKILL)) as holder, ThreadPoolExecutor(1) as pool:
        assert holder.hear() == "in"
        told = pool.submit(poster.together.write, storing("one"), nothing, a_post("one"))
        eventually(lambda: len(ledger_board(ledger).waiting()) == 1)
        holder.tell()
        result = told.result(20)
        first = result[0] if isinstance(result, list) else result
        assert holder.process.wait() == -signal.SIGKILL
    assert first.created is not is_there, "it was stored before its owner could be told"
    assert stored(ledger) == ["one"] and verify(ledger) == []


def ledger_board(ledger: Ledger) -> Board:
    ledger.engine()
    return ledger.board


def test_where_the_holder_stops_with_a_request_in_hand_nobody_claims_that_it_was_not_stored(ledger: Ledger) -> None:
    poster = another(ledger, busy_timeout_seconds=0.3)
    with Child(HOLDER, ledger.path, "store_posts", int(signal.SIGSTOP)) as holder, ThreadPoolExecutor(1) as pool:
        assert holder.hear() == "in"
        told = pool.submit(poster.together.write, storing("one"), nothing, a_post("one"))
        eventually(lambda: len(ledger_board(ledger).waiting()) == 1)
        holder.tell()
        with pytest.raises(LedgerUnavailableError, match="it is not known whether it was stored"):
            told.result(20)
        assert ledger.board.waiting() == [], "nobody else takes it now"
        holder.signal(signal.SIGCONT)
        assert holder.hear() == "out"
    assert stored(ledger) == ["one"]
    assert not poster.together.write(storing("one"), nothing).created
    assert verify(ledger) == []


def test_what_was_taken_down_before_the_holder_looked_is_stored_by_nobody_else(ledger: Ledger) -> None:
    poster = another(ledger, busy_timeout_seconds=0.3)
    with Child(HOLDER, ledger.path, "-", 0) as holder:
        assert holder.hear() == "in"
        with pytest.raises(LedgerUnavailableError):
            poster.together.write(storing("one"), nothing, a_post("one"))
        holder.tell()
        assert holder.hear() == "out"
    assert stored(ledger) == []


def test_an_interrupt_at_any_step_of_who_has_posted_leaves_nobody_waiting_and_nothing_pinned(ledger: Ledger) -> None:
    poster = another(ledger)
    assert poster.together.write(storing("first"), nothing).created
    for step in itertools.count(1):
        interrupting = Interrupting(step)

        def write(name: str, interrupting: Interrupting = interrupting) -> bool:
            sys.settrace(interrupting)
            try:
                poster.together.write(storing(name), nothing, a_post(name))
            except KeyboardInterrupt:
                return False
            finally:
                sys.settrace(None)
            return True

        with ThreadPoolExecutor(1) as pool:
            with a_turn(ledger):
                told = pool.submit(write, f"victim-{step}")
                eventually(lambda told=told: told.done() or ledger.board.waiting(), pause_seconds=0.001)
            assert found_if(told.result(20), ledger, f"victim-{step}")
            assert pool.submit(poster.together.write, storing(f"later-{step}"), nothing).result(20).created
        assert ledger.board.waiting() == [] and poster.together._leader is None and not poster.together._inside
        if not interrupting.hit:
            break
    assert step > 10 and verify(ledger) == []


def found_if(told: bool, ledger: Ledger, operation_id: str) -> bool:
    """What was told to be stored is there; what was interrupted may be."""
    return not told or operation_id in stored(ledger)


CROWD = """
import sys, time
from settled.core.errors import LedgerUnavailableError
from settled.store.ledger import Ledger
from settled.store.posting import Post
from settled.store.requests import Request, store_requests
ledger = Ledger(sys.argv[1], monotonic_us=lambda: time.monotonic_ns() // 1000)
name, count = sys.argv[2], int(sys.argv[3])
def request(identity):
    return Request(identity, "c", "1", "default", "high", "json1:00", None, None, True, 0, None, 1, None, "{}")
def write(identity):
    requests = [request(identity)]
    work = lambda transaction: store_requests(transaction, requests, 1)
    return ledger.together.write(work, post=lambda: Post(requests, 1))[0]
print("ready")
input()
for number in range(count):
    for identity in (f"{name}-{number}", f"shared-{number}"):
        stored = write(identity)
        assert stored.row.operation_id == identity and stored.differs is None
        if stored.created:
            print("made", identity)
print("done")
input()
"""


@contextmanager
def a_crowd(ledger: Ledger, count: int) -> Iterator[list[Child]]:
    """Let four processes begin together, each with `count` requests of its own and as many that all of them make."""
    with ExitStack() as started:
        children = [started.enter_context(Child(CROWD, ledger.path, name, count)) for name in "abcd"]
        assert [child.hear() for child in children] == ["ready"] * 4
        for child in children:
            child.tell()
        yield children


def said_by(child: Child) -> list[str]:
    made = []
    while (line := child.hear()) != "done":
        made.append(line.removeprefix("made "))
    return made


@pytest.mark.promise("S87", part="four processes in a crowd: none is refused, and they share commits")
def test_a_crowd_of_processes_stores_each_request_once_and_shares_commits(ledger: Ledger) -> None:
    with a_crowd(ledger, 100) as children, ThreadPoolExecutor(4) as pool:
        made = sorted(itertools.chain.from_iterable(pool.map(said_by, children)))
    expected = sorted([f"{name}-{number}" for name in ["a", "b", "c", "d", "shared"] for number in range(100)])
    assert stored(ledger) == expected
    assert made == expected, "each was created once, and one of them was told so"
    assert len(seals(ledger)) < len(expected), "nothing was shared"
    assert verify(ledger) == []


@pytest.mark.parametrize("after", [3, 30, 55])
def test_one_of_a_crowd_that_is_killed_takes_nobody_with_it(ledger: Ledger, after: int) -> None:
    with a_crowd(ledger, 60) as children, ThreadPoolExecutor(3) as pool:
        others = pool.map(said_by, children[1:])
        heard = [children[0].hear() for _ in range(after)]
        children[0].kill()
        told = {line.removeprefix("made ") for line in heard} | set(itertools.chain.from_iterable(others))
    there = set(stored(ledger))
    assert told - {"done", ""} <= there
    assert {f"{name}-{number}" for name in ["b", "c", "d", "shared"] for number in range(60)} <= there
    assert verify(ledger) == []
