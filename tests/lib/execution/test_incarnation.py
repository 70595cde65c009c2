import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from settled.clock import boot_id_short
from settled.core.decide_lease import judge_owner
from settled.core.errors import ConfigurationError
from settled.execution.incarnation import (
    MARK,
    Incarnation,
    is_list_partial,
    lock_is_free,
    marked,
    marked_processes,
    marks_of,
    pid_namespace,
    remove_lock_file,
    shows_processes_of,
    start_ticks,
)
from tests.lib.children import Child

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
pytestmark = linux

# A worker: prints what its successor would find in the ledger, then does what it is told.
WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from settled.execution.incarnation import Incarnation
from settled.execution.recorder import Recorder
me = Incarnation.start(Path(sys.argv[1]))
recorder = Recorder.create(me.lock_path.with_suffix(".recorder"), 2, me.id, me.boot_id)
print(me.id, me.lock_path, me.lock_dev, me.lock_inode, me.start_ticks)
for line in sys.stdin:
    match line.strip():
        case "fork":
            child = os.fork()
            if child == 0:
                os.close(0)
                time.sleep(600)
            print(child)
        case "daemon":  # forked, in a session of its own, with every descriptor closed: neither lock nor mark is left of it
            told, tell = os.pipe()
            child = os.fork()
            if child == 0:
                os.setsid()
                os.close(told)
                os.dup2(tell, 0)
                os.closerange(1, 1024)
                os.close(0)
                time.sleep(600)
            os.close(tell)
            os.read(told, 1)  # at its end the child has closed them all
            print(child)
        case "exec":  # close_fds: it gets the mark and not the lock
            print(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True).pid)
        case "runner":  # an exec'd child that is handed the lock, with an environment of its own
            print(subprocess.Popen(["sleep", "600"], stdin=-3, stdout=-3, pass_fds=[me.lock_fd], env={}).pid)  # -3: DEVNULL
        case "release":
            me.release()
            print("released", os.environ["SETTLED_INCARNATION"])
"""


class Seen:
    """What a ledger would know of the worker in `child`."""

    def __init__(self, line: str) -> None:
        identity, path, dev, inode, ticks = line.split()
        self.id, self.path, self.dev, self.inode, self.start_ticks = identity, Path(path), int(dev), int(inode), int(ticks)

    def lock_is_free(self) -> bool | None:
        return lock_is_free(self.path, self.dev, self.inode)

    def is_gone(self) -> bool:
        marks = self.marked()
        count = None if marks is None else len(marks)
        judged = judge_owner(same_boot=True, lock_is_free=self.lock_is_free(), marked_processes=count, handed_cgroup_empty=None)
        return judged.fence is not None

    def marked(self) -> list[int] | None:
        return marked_processes(self.id, started_ticks=self.start_ticks)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[Child, Seen]]:
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}  # an App that lives longer than one test has marked us
    with Child(WORKER, tmp_path, environ=unmarked) as child:
        yield child, Seen(child.hear())


@pytest.fixture
def left_over() -> Iterator[list[int]]:
    """Pids that a test leaves to live after their parent; killed by pid at its end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.promise("S31")
def test_a_killed_worker_frees_its_lock_and_is_surely_gone(worker: tuple[Child, Seen]) -> None:
    child, seen = worker
    assert seen.lock_is_free() is False
    assert not seen.is_gone()
    child.kill()
    assert seen.lock_is_free() is True
    assert seen.is_gone()


def test_a_stopped_worker_still_holds_its_lock(worker: tuple[Child, Seen]) -> None:
    child, seen = worker
    child.signal(signal.SIGSTOP)
    assert seen.lock_is_free() is False
    assert not seen.is_gone()


@pytest.mark.promise("S93")
@pytest.mark.parametrize("how", ["fork", "runner"])
def test_a_child_that_has_the_lock_keeps_it_after_the_worker_died(
    worker: tuple[Child, Seen], left_over: list[int], how: str, eventually: Callable[..., object]
) -> None:
    child, seen = worker
    left_over.append(int(child.ask(how)))
    child.kill()
    assert seen.lock_is_free() is False
    assert not seen.is_gone()
    os.kill(left_over[0], signal.SIGKILL)
    eventually(seen.is_gone)


@pytest.mark.promise("S93")
def test_a_forked_child_that_closed_everything_is_found_by_the_recorder_that_it_maps(
    worker: tuple[Child, Seen], left_over: list[int], eventually: Callable[..., object]
) -> None:
    child, seen = worker
    left_over.append(pid := int(child.ask("daemon")))
    child.kill()
    assert seen.lock_is_free() is True
    assert f"{MARK}={seen.id}" not in Path(f"/proc/{pid}/environ").read_text()
    assert seen.marked() == [pid]
    assert not seen.is_gone()
    os.kill(pid, signal.SIGKILL)
    eventually(seen.is_gone)


@pytest.mark.promise("S93")
def test_an_execd_child_is_found_by_its_mark_where_the_lock_is_free(
    worker: tuple[Child, Seen], left_over: list[int], eventually: Callable[..., object]
) -> None:
    child, seen = worker
    left_over.append(int(child.ask("exec")))
    child.kill()
    assert seen.lock_is_free() is True
    eventually(lambda: seen.marked() == left_over)
    assert not seen.is_gone()
    os.kill(left_over[0], signal.SIGKILL)
    eventually(seen.is_gone)


def test_releasing_does_not_take_the_lock_from_children(
    worker: tuple[Child, Seen], left_over: list[int], eventually: Callable[..., object]
) -> None:
    child, seen = worker
    left_over.append(int(child.ask("fork")))
    assert child.ask("release") == "released"
    assert seen.lock_is_free() is False
    os.kill(left_over[0], signal.SIGKILL)
    eventually(lambda: seen.lock_is_free() is True)


def test_a_forked_child_cannot_release_for_its_parent(tmp_path: Path) -> None:
    me = Incarnation.start(tmp_path)
    child = os.fork()
    if child == 0:
        me.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert lock_is_free(me.lock_path, me.lock_dev, me.lock_inode) is False
    me.release()
    assert lock_is_free(me.lock_path, me.lock_dev, me.lock_inode) is True


def test_an_unlinked_lock_file_proves_nothing(worker: tuple[Child, Seen]) -> None:
    child, seen = worker
    seen.path.unlink()
    assert seen.lock_is_free() is None
    child.kill()
    assert seen.lock_is_free() is None
    assert not seen.is_gone()


def test_a_lock_file_made_anew_proves_nothing(worker: tuple[Child, Seen]) -> None:
    child, seen = worker
    seen.path.rename(seen.path.with_suffix(".old"))  # kept, so that the new file cannot get the old inode
    seen.path.touch()
    assert seen.lock_is_free() is None
    assert not seen.is_gone()
    seen.path.unlink()
    seen.path.symlink_to(seen.path.with_suffix(".old"))
    child.kill()
    assert seen.lock_is_free() is None


def test_looking_takes_nothing_and_two_observers_do_not_disturb_each_other(worker: tuple[Child, Seen]) -> None:
    child, seen = worker
    child.kill()
    observer = "import sys; from pathlib import Path; from settled.execution.incarnation import lock_is_free\n"
    observer += "asked = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])\n"
    observer += "print({lock_is_free(*asked) for _ in range(3000)})"
    with Child(observer, seen.path, seen.dev, seen.inode) as one, Child(observer, seen.path, seen.dev, seen.inode) as other:
        assert (one.hear(), other.hear()) == ("{True}", "{True}")
    holder = os.open(seen.path, os.O_RDWR)
    subprocess.run(
        [sys.executable, "-c", "import fcntl, sys; fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)", str(holder)],
        pass_fds=[holder],
        check=True,
    )
    os.close(holder)


def test_the_lock_file_is_removed_only_when_it_is_that_file_and_free(worker: tuple[Child, Seen]) -> None:
    child, seen = worker
    assert not remove_lock_file(seen.path, seen.dev, seen.inode)
    child.kill()
    assert not remove_lock_file(seen.path, seen.dev, seen.inode + 1)
    assert seen.path.exists()
    assert remove_lock_file(seen.path, seen.dev, seen.inode)
    assert not seen.path.exists()


def test_an_incarnation_says_who_it_is(tmp_path: Path) -> None:
    me, another = Incarnation.start(tmp_path), Incarnation.start(tmp_path)
    assert me.id != another.id
    assert (me.pid, me.start_ticks, me.boot_id) == (os.getpid(), start_ticks(os.getpid()), boot_id_short())
    there = me.lock_path.stat()
    assert (me.lock_dev, me.lock_inode) == (there.st_dev, there.st_ino)
    assert os.get_inheritable(me.lock_fd)
    assert marks_of(os.environ)[-2:] == (me.id, another.id)
    me.release()
    assert me.id not in marks_of(os.environ)
    assert marks_of(os.environ)[-1] == another.id
    another.release()


def test_the_mark_is_added_to_those_that_are_carried_already() -> None:
    assert marked({}, "b") == {MARK: "b"}
    assert marked({MARK: "a", "HOME": "/"}, "b") == {MARK: "a,b", "HOME": "/"}
    assert marked({MARK: "a,b"}, "b") == {MARK: "a,b"}


def test_a_mark_is_recognised_whole_and_among_others() -> None:
    with Child("print('up'); input()", environ={MARK: "aaaa,bbbb"}) as child:
        child.hear()
        since = start_ticks(child.pid)
        assert marked_processes("aaaa", started_ticks=since) == [child.pid]
        assert marked_processes("bbbb", started_ticks=since) == [child.pid]
        assert marked_processes("bbb", started_ticks=since) == []


def test_the_start_time_tells_a_process_from_another_and_none_from_nobody() -> None:
    with Child("print('up'); input()") as child:
        child.hear()
        first = start_ticks(child.pid)
        assert first is not None
        assert first >= (start_ticks(os.getpid()) or 0)
    assert start_ticks(child.pid) is None


def test_a_chain_of_children_that_fork_on_is_not_missed(left_over: list[int]) -> None:
    chain = """
import os, sys
print('up')
for _ in range(400):
    if os.fork():
        os._exit(0)
print(os.getpid())
sys.stdin.read()
"""
    with Child(chain, environ={MARK: "chainlink"}) as child:
        since = start_ticks(child.pid)
        assert child.hear() == "up"
        for _ in range(10):  # whenever one looks, one of them is alive, each started after the list was read
            assert marked_processes("chainlink", started_ticks=since) != []
        left_over.append(int(child.hear()))
        assert marked_processes("chainlink", started_ticks=since) == left_over


# As another user, so that no process of the machine that is ours and hides itself is in the way.
AS_NOBODY = "import ctypes, os, sys\nfrom settled.execution.incarnation import marked_processes, start_ticks\nos.setuid(int(sys.argv[1]))\n"
AS_NOBODY += "may_be_read = lambda yes: ctypes.CDLL(None).prctl(4, yes, 0, 0, 0)\n"  # PR_SET_DUMPABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.promise("S93")
@pytest.mark.parametrize("as_older", [False, True])
def test_an_environment_that_cannot_be_read_is_no_proof_unless_it_is_older(as_older: bool) -> None:
    hidden = AS_NOBODY + "may_be_read(0)\nprint(start_ticks(os.getpid()))\ninput()"
    looks = "(marked_processes('nobody-has-this', started_ticks=int(sys.argv[2])) for _ in range(50))"  # others may fork meanwhile
    looker = AS_NOBODY + f"may_be_read(1)\nprint(next((found for found in {looks} if found is not None), None))"
    nobody = 100_000 + os.getpid()  # a user of this test alone: others may run beside it
    with Child(looker, nobody, 0) as alone:
        assert alone.hear() == "[]", "processes of other users must not count"
    with Child(hidden, nobody) as child, Child(looker, nobody, int(child.hear()) + as_older) as observer:
        assert observer.hear() == ("[]" if as_older else "None")


CONTAINED = "import os, sys\nos.execvp('unshare', ['unshare', '-pf', '--mount-proc', '--kill-child', sys.executable, '-c', *sys.argv[1:]])"
LOOKER = """
import sys
from settled.execution.incarnation import marked_processes, pid_namespace, shows_processes_of
print(marked_processes(sys.argv[1]), shows_processes_of(int(sys.argv[2])), shows_processes_of(pid_namespace()), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a PID namespace, as a container has one")
@pytest.mark.promise("S93", part="a process list of another container shows nothing")
def test_whoever_looks_from_another_container_is_told_nothing_by_a_process_list_without_the_processes_of_the_owner() -> None:
    with Child("print('up'); input()", environ={MARK: "outside"}) as alive:
        alive.hear()
        assert marked_processes("outside", started_ticks=start_ticks(alive.pid)) == [alive.pid] and shows_processes_of(pid_namespace())
        with Child(CONTAINED, LOOKER, "outside", pid_namespace()) as looker:
            assert looker.hear() == "[] False True"


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o2770, 0o660), (0o700, 0o600), (0o750, 0o600)])
def test_the_lock_file_has_the_mode_that_its_folder_calls_for(
    tmp_path: Path, folder_mode: int, file_mode: int
) -> None:
    tmp_path.chmod(folder_mode)
    umask = os.umask(0o077)
    try:
        me = Incarnation.start(tmp_path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(me.lock_path.stat().st_mode) == file_mode
    me.release()


def test_a_folder_that_cannot_hold_a_lock_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was started"):
        Incarnation.start(tmp_path / "missing")


@pytest.mark.promise("S93", part="a list of processes that leaves some out shows no absence")
@pytest.mark.parametrize(
    ("option", "of_others", "of_own"),
    [
        ("", False, False),
        (",hidepid=noaccess", False, False),  # listed, and not readable: that is noticed
        (",hidepid=invisible", True, False),
        (",hidepid=2", True, False),
        (",hidepid=ptraceable", True, True),
    ],
)
def test_a_list_that_hides_processes_is_known_by_its_mount(tmp_path: Path, option: str, of_others: bool, of_own: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"""\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw,nosuid shared:2 - proc proc rw
23 21 0:6 / /proc rw,nosuid shared:3 - proc proc rw{option}
24 23 0:7 / /proc/sys ro - proc proc rw,hidepid=invisible
""")
    assert (is_list_partial(False, mounts), is_list_partial(True, mounts)) == (of_others, of_own)
    assert is_list_partial(True, tmp_path / "none")
