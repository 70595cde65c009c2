"""The board on which processes that wait for their turn pin what they would store: a courtesy, never a truth."""

import os
import resource
import select
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from settled.store.board import PLACES, TEXT_BYTES_MAX, Board, Pin, answer_all
from tests.lib.children import Child

Make = Callable[[], Board]
PINNING = """
import sys
from pathlib import Path
from settled.store.board import Board
board = Board(Path(sys.argv[1]))
pin = board.pin(b"of the child")
print(pin is not None)
input()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "board"


@pytest.fixture
def board(path: Path) -> Iterator[Make]:
    """Make boards on one file, as different processes have it; all are closed in the end."""
    with ExitStack() as made:

        def make() -> Board:
            one = Board(path)
            made.callback(one.close)
            return one

        yield make


def pinned(board: Board, text: bytes) -> Pin:
    """Pin a text for which there is room."""
    pin = board.pin(text)
    assert pin is not None
    return pin


def test_what_one_pins_the_others_see_and_one_of_them_answers(board: Make) -> None:
    mine, other, third = board(), board(), board()
    pin = pinned(mine, b"please")
    assert mine.waiting() == []
    (seen,) = other.waiting()
    assert seen.text == b"please" and [one.text for one in third.waiting()] == [b"please"]
    assert not pin.is_answered()
    answer_all([seen], [b"done"])
    assert pin.is_answered() and third.waiting() == []
    assert pin.take_down() == b"done"
    pinned(mine, b"again")
    assert [one.text for one in other.waiting()] == [b"again"]


def test_an_empty_answer_is_told_from_none(board: Make) -> None:
    mine, other = board(), board()
    assert pinned(mine, b"first").take_down() is None
    pin = pinned(mine, b"second")
    answer_all(other.waiting(), [b""])
    assert pin.take_down() == b""


def test_what_is_taken_down_is_gone_from_the_file(board: Make, path: Path) -> None:
    mine, other = board(), board()
    pin = pinned(mine, b"4111 1111 1111 1111")
    assert b"4111" in path.read_bytes()
    pin.take_down()
    assert other.waiting() == []
    assert b"4111" not in path.read_bytes()
    pinned(mine, b"4222 2222 2222 2222")
    mine.give_up()
    assert other.waiting() == [] and b"4222" not in path.read_bytes()


def test_an_answer_that_comes_late_is_none_to_what_is_pinned_next(board: Make) -> None:
    mine, other = board(), board()
    pin = pinned(mine, b"first")
    (first,) = other.waiting()
    pin.take_down()
    second = pinned(mine, b"second")
    answer_all([first], [b"of the first"])
    assert not second.is_answered()
    assert [one.text for one in other.waiting()] == [b"second"]
    answer_all(other.waiting(), [b"of the second"])
    assert second.take_down() == b"of the second"


def test_a_torn_text_is_passed_over_and_a_torn_answer_says_nothing(board: Make, path: Path) -> None:
    mine, other = board(), board()
    pin = pinned(mine, b"please")
    (seen,) = other.waiting()
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"please"))
        file.write(b"P")
    assert other.waiting() == []
    answer_all([seen], [b"stored here"])
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"stored here"))
        file.write(b"S")
    assert pin.is_answered() and pin.take_down() == b""


@pytest.mark.parametrize("length", [0, 100, 5000])
def test_a_file_that_is_cut_short_under_way_ends_nobody(board: Make, path: Path, length: int) -> None:
    mine, other = board(), board()
    pin = pinned(mine, b"please")
    seen = other.waiting()
    os.truncate(path, length)
    assert not pin.is_answered() and len(other.waiting()) <= 1
    answer_all(seen, [b"done"])
    assert pin.take_down() in (b"done", b"", None)
    again = pinned(mine, b"again")
    assert [one.text for one in other.waiting()] == [b"again"]
    again.take_down()


def test_what_is_under_way_when_the_board_is_closed_ends_as_it_began(board: Make) -> None:
    mine, other = board(), board()
    pin = pinned(mine, b"please")
    seen = other.waiting()
    mine.close()
    other.close()
    answer_all(seen, [b"done"])
    assert pin.is_answered() and pin.take_down() == b"done"


def test_a_text_that_is_too_long_is_not_pinned(board: Make) -> None:
    mine, other = board(), board()
    assert mine.pin(b"x" * (TEXT_BYTES_MAX + 1)) is None and other.waiting() == []
    pin = pinned(mine, b"x" * TEXT_BYTES_MAX)
    assert len(other.waiting()[0].text) == TEXT_BYTES_MAX
    answer_all(other.waiting(), [b"y" * 200])
    assert pin.take_down() == b"y" * 200


def test_who_finds_no_place_goes_without(board: Make) -> None:
    boards = [board() for _ in range(PLACES + 1)]
    pins = [one.pin(b"%d" % number) for number, one in enumerate(boards)]
    assert [pin is not None for pin in pins] == [True] * PLACES + [False]
    assert len(boards[-1].waiting()) == PLACES
    boards[3].close()
    pins[3] = None
    pinned(boards[-1], b"late")
    assert sorted(one.text for one in boards[0].waiting())[-1] == b"late"


def test_what_a_killed_process_left_is_not_taken_and_its_place_is_cleared_for_the_next(board: Make, path: Path) -> None:
    other = board()
    with Child(PINNING, path) as child:
        assert child.hear() == "True"
        assert [one.text for one in other.waiting()] == [b"of the child"]
        child.kill()
    assert other.waiting() == []
    assert b"of the child" in path.read_bytes()
    pinned(other, b"mine")
    assert b"of the child" not in path.read_bytes()
    assert [one.text for one in board().waiting()] == [b"mine"]


def test_a_fork_leaves_its_parent_the_place(board: Make) -> None:
    mine, other = board(), board()
    pinned(mine, b"of the parent")
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [one.text for one in other.waiting()] == [b"of the parent"]
    pinned(other, b"other")
    assert len(board().waiting()) == 2


@pytest.mark.parametrize("place", ["missing/board", "file/board", "link", "folder"])
def test_a_board_that_cannot_be_used_is_gone_without(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    useless = Board(tmp_path / place)
    assert useless.pin(b"please") is None and useless.waiting() == []
    assert not (tmp_path / "elsewhere").exists()
    useless.close()


def listening(pool: ThreadPoolExecutor, pin: Pin) -> "Future[None]":
    """Sleep at a place for far longer than any test takes."""
    return pool.submit(pin._file.listen, 600)


def test_who_is_answered_and_who_waits_on_are_woken_once_the_turn_is_left(board: Make) -> None:
    one, two, other = board(), board(), board()
    with ThreadPoolExecutor() as pool:
        sleeping = [listening(pool, pinned(one, b"one"))]
        answer_all(other.waiting(), [b"done"])
        sleeping.append(listening(pool, pinned(two, b"two")))  # it came after the look
        other.ring()
        for each in sleeping:
            each.result(30)
        again = listening(pool, pinned(one, b"again"))
        other.ring()  # still crowded: no look is needed to know of it
        again.result(30)


def test_where_nobody_was_seen_to_wait_nobody_is_looked_for(board: Make, path: Path) -> None:
    mine, other = board(), board()
    assert other.waiting() == []
    pin = pinned(mine, b"please")
    other.ring()
    assert [one.name for one in path.parent.iterdir()] == ["board"]
    assert len(other.waiting()) == 1
    other.ring()
    pin.take_down()
    other.ring()  # finds nobody any more
    bell = pinned(mine, b"again")._file._bell(0)
    os.read(bell, 4096)
    other.ring()
    assert select.select([bell], [], [], 0)[0] == [], "it rang without having seen anybody"


def test_a_bell_that_was_rung_too_often_holds_up_nobody(board: Make) -> None:
    mine, other = board(), board()
    pin = pinned(mine, b"please")
    other.waiting()
    for _ in range(70_000):  # more than a pipe takes
        other.ring()
    pin.nap(600)
    assert not pin.is_answered()


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_without_a_bell_one_looks_again_soon(board: Make, path: Path, there: str) -> None:
    bell = path.with_name("board.0")
    if there == "file":
        bell.write_bytes(b"of somebody")
    elif there == "folder":
        bell.mkdir()
    else:
        bell.symlink_to(path.with_name("elsewhere"))
    mine, other = board(), board()
    pin = pinned(mine, b"please")
    assert len(other.waiting()) == 1
    other.ring()
    pin._file.listen(600)
    assert there != "file" or bell.read_bytes() == b"of somebody"


def test_who_naps_very_often_naps_on(board: Make) -> None:
    pin = pinned(board(), b"please")
    for _ in range(2000):
        pin.nap(1e-9)
    assert not pin.is_answered()


def test_a_bell_with_a_number_that_select_does_not_take_is_slept_beside(board: Make) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        many = [os.dup(null) for _ in range(1100)]
        mine = board()
        pin = pinned(mine, b"please")
        pin._file.listen(600)
        assert pin._file._bell(0) > 1024
    finally:
        for fd in [null, *many]:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FULL = """
import resource, sys
from pathlib import Path
from settled.store.board import Board
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
board = Board(Path(sys.argv[1]))
print(board.pin(b"please"), board.waiting())
"""


def test_a_disk_without_room_for_the_board_ends_nobody(path: Path) -> None:
    with Child(FULL, path) as child:
        assert child.hear() == "None []"


def test_a_board_and_its_bells_are_private_or_their_groups(tmp_path: Path) -> None:
    for mode, expected in ((0o700, 0o600), (0o2770, 0o660)):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        folder.chmod(mode)
        one = Board(folder / "board")
        pinned(one, b"please").nap(0)
        assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {"board": expected, "board.0": expected}
        one.close()
