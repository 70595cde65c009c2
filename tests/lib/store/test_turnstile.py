import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from settled.clock import monotonic_us
from settled.store.turnstile import Turnstile
from tests.lib.children import Child

HEAD = """
import os, sys, threading, time
from pathlib import Path
from settled.clock import monotonic_us
from settled.store.turnstile import Turnstile
turnstile = Turnstile(Path(sys.argv[1]), monotonic_us=monotonic_us, timeout_seconds=float(sys.argv[2]))
"""
HOLDER = HEAD + "with turnstile:\n    print('in')\n    input()\nprint('out')\ninput()"
# Writes its own mark into a file, reads it back a little later, and counts whether somebody else wrote meanwhile. The turns are
# numbered behind the mark: from that, whoever had to wait knows how many others had before him.
HAMMER = (
    HEAD
    + """
shared = os.open(sys.argv[3], os.O_RDWR)
me = os.getpid().to_bytes(4, "little")
waits, clashes = [], 0
number = lambda: int.from_bytes(os.pread(shared, 8, 4), "little")
print("ready")
input()
until = time.monotonic() + float(sys.argv[4])
while time.monotonic() < until:
    came = number()
    with turnstile:
        waits.append(number() - came)
        os.pwrite(shared, me + (number() + 1).to_bytes(8, "little"), 0)
        for _ in range(20):
            clashes += os.pread(shared, 4, 0) != me
        os.fsync(shared)
        clashes += os.pread(shared, 4, 0) != me
print(len(waits), sorted(waits)[int(len(waits) * 0.99)], clashes, turnstile.missed)
"""
)


def make(path: Path, timeout_seconds: float = 5.0) -> Turnstile:
    return Turnstile(path, monotonic_us=monotonic_us, timeout_seconds=timeout_seconds)


def seconds_of(turn: Turnstile) -> float:
    began = time.monotonic()
    with turn:
        return time.monotonic() - began


def test_a_turn_is_had_by_one_process_at_a_time(tmp_path: Path, eventually: Callable[..., object]) -> None:
    path = tmp_path / "turnstile"
    entered = threading.Event()
    turn = make(path)

    def enter() -> None:
        with turn:
            entered.set()

    with Child(HOLDER, path, 5) as holder:
        assert holder.hear() == "in"
        waiter = threading.Thread(target=enter)
        waiter.start()
        assert not entered.wait(0.1)
        assert holder.ask() == "out"
        assert entered.wait(5)
        waiter.join()
    assert turn.missed == 0


def test_four_processes_that_never_rest_are_all_served_and_never_clash(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.write_bytes(b"none" + bytes(8))
    children = [Child(HAMMER, tmp_path / "turnstile", 5, shared, 2) for _ in range(4)]
    try:
        assert {child.hear() for child in children} == {"ready"}
        for child in children:
            child.tell()
        said = [child.hear().split() for child in children]
    finally:
        for child in children:
            child.__exit__()
    turns = [int(line[0]) for line in said]
    assert [int(line[2]) for line in said] == [0] * 4, "two were in at once"
    assert [int(line[3]) for line in said] == [0] * 4, "somebody went on without its turn"
    assert min(turns) >= 5
    assert max(turns) < 3 * min(turns), f"the turns were not shared fairly: {turns}"
    # About three. A queue in which the last holder may overtake keeps somebody waiting for hundreds of them.
    assert max(int(line[1]) for line in said) < 30


def test_threads_have_their_turns_in_the_order_in_which_they_came(tmp_path: Path, eventually: Callable[..., object]) -> None:
    turn = make(tmp_path / "turnstile")
    order: list[int] = []

    def enter(number: int) -> None:
        with turn:
            order.append(number)

    threads = []
    with turn:
        for number in range(8):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            eventually(lambda number=number: len(turn._line._waiting) == number + 1)
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_an_idle_process_and_a_killed_holder_block_nobody(tmp_path: Path) -> None:
    path = tmp_path / "turnstile"
    turn = make(path)
    with Child(HOLDER, path, 5) as holder:
        assert holder.hear() == "in"
        holder.kill()
        seconds_of(turn)
    with Child(HOLDER, path, 5) as idle:
        assert idle.hear() == "in"
        assert idle.ask() == "out"
        seconds_of(turn)
    assert turn.missed == 0, "it had its turn, and waited out no timeout"


def test_a_stopped_holder_costs_the_timeout_once_and_not_at_each_turn(tmp_path: Path) -> None:
    path = tmp_path / "turnstile"
    turn = make(path, 0.5)
    with Child(HOLDER, path, 5) as holder:
        assert holder.hear() == "in"
        holder.signal(signal.SIGSTOP)
        assert 0.5 <= seconds_of(turn) < 5.0
        assert turn.missed == 1
        assert sum(seconds_of(turn) for _ in range(20)) < 20 * 0.5 / 2
        assert turn.missed == 21
        holder.signal(signal.SIGCONT)
        assert holder.ask() == "out"
        assert seconds_of(turn) < 5.0
        assert turn.missed == 21, "the queue works again once the holder has moved"
    with Child(HOLDER, path, 5) as another:  # a new holder is waited for again
        assert another.hear() == "in"
        assert seconds_of(turn) >= 0.5


def test_one_that_was_stopped_while_it_waited_does_not_close_the_queue(tmp_path: Path, eventually: Callable[..., object]) -> None:
    path = tmp_path / "turnstile"
    gate = Path(f"{path}.next")
    turn = make(path, 0.5)
    with Child(HOLDER, path, 60) as holder:
        assert holder.hear() == "in"
        before = gate.read_bytes()
        with Child(HOLDER, path, 60) as waiter:
            eventually(lambda: gate.read_bytes() != before)  # it has gone through "next" and waits at "turn"
            waiter.signal(signal.SIGSTOP)
            assert holder.ask() == "out"
            assert seconds_of(turn) >= 0.5
            assert sum(seconds_of(turn) for _ in range(20)) < 20 * 0.5 / 2, "the timeout is waited for once, not at each turn"
            assert turn.missed == 0, "the first gate is stuck, but the second still gives turns"


def test_a_turn_within_a_turn_is_the_same_turn(tmp_path: Path) -> None:
    turn, other = make(tmp_path / "turnstile", 0.2), make(tmp_path / "turnstile", 0.2)
    with turn:
        with turn:
            pass
        with other:
            assert other.missed == 1, "leaving the inner one must not give the turn away"
    with other:
        assert other.missed == 1


def test_an_exception_gives_the_turn_back(tmp_path: Path) -> None:
    turn, other = make(tmp_path / "turnstile"), make(tmp_path / "turnstile", 0.2)
    with pytest.raises(ZeroDivisionError), turn:
        raise ZeroDivisionError
    with other:
        assert other.missed == 0


def test_a_thread_that_waits_in_vain_goes_on_without(tmp_path: Path) -> None:
    turn = make(tmp_path / "turnstile", 0.2)
    waited: list[float] = []
    with turn:
        thread = threading.Thread(target=lambda: waited.append(seconds_of(turn)))
        thread.start()
        thread.join()
        assert waited[0] >= 0.2
        assert turn.missed == 1
        other = make(tmp_path / "turnstile", 0.1)
        with other:
            assert other.missed == 1, "who went on without gave somebody else's turn back"
    seconds_of(turn)
    assert turn.missed == 1, "the turn was free again"


def test_a_forked_child_queues_for_itself(tmp_path: Path) -> None:
    turn = make(tmp_path / "turnstile", 0.3)
    with turn:
        child = os.fork()
        if child == 0:
            turn.__exit__()  # as its `with` would: must not open the parent's gate
            with turn:
                os._exit(0 if turn.missed == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        other = make(tmp_path / "turnstile", 0.1)
        with other:
            assert other.missed == 1
    child = os.fork()
    if child == 0:
        with turn:
            os._exit(turn.missed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_forked_within_a_turn_does_not_keep_it_after_its_parent(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
with turnstile:
    child = os.fork()
    if child == 0:
        os.close(0)
        time.sleep(600)
    print(child)
    input()
"""
    )
    with Child(code, tmp_path / "turnstile", 5) as parent:
        child = int(parent.hear())
        parent.kill()
        try:
            turn = make(tmp_path / "turnstile", 0.3)
            with turn:
                assert turn.missed == 0
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("place", ["missing/turnstile", "file/turnstile", "link"])
def test_without_a_usable_file_the_write_goes_on(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    turn = make(tmp_path / place)
    assert seconds_of(turn) < 1
    assert turn.missed == 1


def test_closed_it_opens_again_and_holds_no_descriptor_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    turn = make(tmp_path / "turnstile")
    for _ in range(3):
        assert seconds_of(turn) < 1
        turn.close()
    assert seconds_of(turn) < 1
    del turn
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o2770, 0o660), (0o700, 0o600)])
def test_a_group_may_queue_where_the_folder_is_made_for_it(tmp_path: Path, folder_mode: int, file_mode: int) -> None:
    tmp_path.chmod(folder_mode)
    umask = os.umask(0o077)
    try:
        assert seconds_of(make(tmp_path / "turnstile")) < 1
    finally:
        os.umask(umask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {file_mode}
    assert {path.name for path in tmp_path.iterdir()} == {"turnstile", "turnstile.next"}
