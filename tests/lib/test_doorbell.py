import os
import select
import socket
import stat
from pathlib import Path

import pytest

from settled.core.errors import ConfigurationError
from settled.doorbell import Doorbell, known_bells, ring_all
from tests.lib.children import Child

LISTEN = """
import sys
from pathlib import Path
from settled.doorbell import Doorbell
bell = Doorbell.listen(Path(sys.argv[1]), "dead")
print("up")
input()
"""
RING = "import sys; from settled.doorbell import ring_all; print(ring_all(sys.argv[1]))"


def is_rung(bell: Doorbell, *, seconds: float = 5.0) -> bool:
    return bool(select.select([bell], [], [], seconds)[0])


def forget_for_a_while(folder: Path) -> None:
    """Make the folder look as if it had been still for an hour, so that its listing is kept."""
    os.utime(folder, ns=(0, folder.stat().st_mtime_ns - 3_600_000_000_000))


def test_a_ring_from_another_process_wakes_the_listener(tmp_path: Path) -> None:
    bell = Doorbell.listen(tmp_path, "worker")
    assert not is_rung(bell, seconds=0)
    with Child(RING, tmp_path) as ringer:
        assert ringer.hear() == "1"
    assert is_rung(bell)
    assert bell.drain() == 1
    assert not is_rung(bell, seconds=0)
    bell.close()


def test_every_listener_is_rung_at_once(tmp_path: Path) -> None:
    bells = [Doorbell.listen(tmp_path, f"worker{number}") for number in range(3)]
    assert ring_all(tmp_path) == 3
    assert [bell.drain() for bell in bells] == [1, 1, 1]
    for bell in bells:
        bell.close()


@pytest.mark.parametrize("length", [90, 100, 108, 180, 250])
def test_a_path_longer_than_a_socket_address_works(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("f" * length)
    folder.mkdir()
    bell = Doorbell.listen(folder, "worker")
    assert (folder / "worker.bell").is_socket()
    assert ring_all(folder) == 1
    assert bell.drain() == 1
    bell.close()
    assert list(folder.iterdir()) == []


def test_a_listener_that_comes_right_after_a_ring_is_heard_of(tmp_path: Path) -> None:
    for number in range(50):
        assert ring_all(tmp_path) == 0
        bell = Doorbell.listen(tmp_path, f"worker{number}")
        assert ring_all(tmp_path) == 1
        bell.close()


def test_a_listener_that_comes_within_the_same_tick_of_the_file_system_is_heard_of(tmp_path: Path) -> None:
    tick = tmp_path.stat().st_mtime_ns
    assert ring_all(tmp_path) == 0
    bell = Doorbell.listen(tmp_path, "worker")
    os.utime(tmp_path, ns=(0, tick))  # what a coarse clock would have written
    assert ring_all(tmp_path) == 1
    bell.close()


def test_a_listener_that_comes_after_the_listing_was_kept_is_heard_of(tmp_path: Path) -> None:
    forget_for_a_while(tmp_path)
    assert ring_all(tmp_path) == 0
    bell = Doorbell.listen(tmp_path, "worker")
    assert ring_all(tmp_path) == 1
    bell.close()


def test_a_kept_listing_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Doorbell.listen(tmp_path, "worker")
    forget_for_a_while(tmp_path)
    assert ring_all(tmp_path) == 1
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("it was read again"))
    assert [ring_all(tmp_path) for _ in range(5)] == [1] * 5
    bell.close()


def test_what_is_known_is_rung_without_a_look_and_what_was_hung_since_with_the_next(tmp_path: Path) -> None:
    assert known_bells(tmp_path) is None
    first = Doorbell.listen(tmp_path, "first")
    forget_for_a_while(tmp_path)
    assert ring_all(tmp_path) == first.drain() == 1
    known = known_bells(tmp_path)
    assert known is not None
    assert (known.ring(), ring_all(tmp_path, known), first.drain()) == (1, 0, 1)
    second = Doorbell.listen(tmp_path, "second")
    assert (known.ring(), ring_all(tmp_path, known)) == (1, 2)
    assert second.drain() == 1
    for bell in (first, second):
        bell.close()
    assert known.ring() == 0


def test_a_stale_bell_is_passed_over_and_left_in_its_place(tmp_path: Path) -> None:
    with Child(LISTEN, tmp_path) as child:
        assert child.hear() == "up"
        child.kill()
    alive = Doorbell.listen(tmp_path, "alive")
    forget_for_a_while(tmp_path)
    assert [ring_all(tmp_path) for _ in range(3)] == [1, 1, 1]
    assert (tmp_path / "dead.bell").is_socket()
    alive.close()
    assert [path.name for path in tmp_path.iterdir()] == ["dead.bell"]


def test_what_is_no_bell_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "file.bell").write_text("no socket")
    (tmp_path / "folder.bell").mkdir()
    os.mkfifo(tmp_path / "pipe.bell")
    (tmp_path / "link.bell").symlink_to("nowhere")
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(str(tmp_path / "stream.bell"))
    bell = Doorbell.listen(tmp_path, "worker")
    assert ring_all(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 6
    bell.close()
    stream.close()


@pytest.mark.parametrize("folder", ["/nowhere/at/all", "/proc/self/status", "nul\0byte", "x" * 5000])
def test_ringing_never_raises(folder: str) -> None:
    assert ring_all(folder) == 0


def test_a_listener_that_sleeps_never_blocks_who_rings(tmp_path: Path) -> None:
    bell = Doorbell.listen(tmp_path, "asleep")
    assert all(ring_all(tmp_path) == 1 for _ in range(3000))
    rings = 0
    while taken := bell.drain():
        rings += taken
    assert 1 <= rings < 3000, "the queue must have been full for this to show anything"
    bell.close()


def test_closing_leaves_a_file_that_took_its_place(tmp_path: Path) -> None:
    bell = Doorbell.listen(tmp_path, "worker")
    bell.path.unlink()
    successor = Doorbell.listen(tmp_path, "worker")
    bell.close()
    bell.close()
    assert ring_all(tmp_path) == 1
    successor.close()
    assert not successor.path.exists()


def test_a_forked_child_takes_no_bell_down(tmp_path: Path) -> None:
    bell = Doorbell.listen(tmp_path, "worker")
    child = os.fork()
    if child == 0:
        bell.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert ring_all(tmp_path) == 1
    assert bell.drain() == 1
    bell.close()


def test_a_name_that_is_taken_is_refused_and_not_removed(tmp_path: Path) -> None:
    bell = Doorbell.listen(tmp_path, "worker")
    with pytest.raises(ConfigurationError, match="polling"):
        Doorbell.listen(tmp_path, "worker")
    assert ring_all(tmp_path) == 1
    bell.close()


@pytest.mark.parametrize(("folder_mode", "bell_mode"), [(0o2770, 0o660), (0o700, 0o600), (0o770, 0o600)])
def test_a_group_may_ring_where_the_folder_is_made_for_it(tmp_path: Path, folder_mode: int, bell_mode: int) -> None:
    tmp_path.chmod(folder_mode)
    bell = Doorbell.listen(tmp_path, "worker")
    assert stat.S_IMODE(bell.path.stat().st_mode) == bell_mode
    bell.close()
