import errno
import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.execution.recorder import Phase, Recorder, RecorderUnreadableError, SlotState
from settled.execution.recorder_file import offset
from tests.lib.children import Child

SLOTS = 64
OBSERVER = """
import sys
from pathlib import Path
from settled.execution.recorder import Recorder
recorder = Recorder.open(Path(sys.argv[1]))
"""


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder.create(tmp_path / "flight", SLOTS, "incarnation1", "boot1")
    yield made
    made.close()


def test_an_attempt_passes_through_its_phases(recorder: Recorder) -> None:
    assert recorder.read(3) == SlotState(0, 0, Phase.FREE, False)
    assert recorder.claim(3, 7, 2)
    assert recorder.read(3) == SlotState(7, 2, Phase.CLAIMED, False)
    assert recorder.enter(3, 7, 2, None)
    assert recorder.read(3) == SlotState(7, 2, Phase.ENTERED, True)
    assert recorder.sending(3, 7, 2)
    assert recorder.sending(3, 7, 2), "a handler may announce more than one request"
    assert recorder.read(3) == SlotState(7, 2, Phase.SENDING, True)
    recorder.returned(3, 7, 2)
    assert recorder.read(3) == SlotState(7, 2, Phase.RETURNED, True)
    recorder.clear(3)
    assert recorder.read(3) == SlotState(0, 0, Phase.FREE, False)


def test_a_slot_in_use_is_not_given_out_again(recorder: Recorder) -> None:
    assert recorder.claim(0, 7, 1)
    assert not recorder.claim(0, 8, 1)
    assert recorder.read(0) == SlotState(7, 1, Phase.CLAIMED, False)
    assert not recorder.claim(SLOTS, 7, 1)
    assert not recorder.claim(-1, 7, 1)
    assert recorder.read(-1) is None


def test_only_its_own_attempt_moves_a_slot_and_enters_once(recorder: Recorder) -> None:
    assert recorder.claim(0, 7, 1)
    assert not recorder.enter(0, 7, 2, None)
    assert not recorder.enter(0, 8, 1, None)
    assert not recorder.sending(0, 7, 1), "not entered yet"
    assert recorder.enter(0, 7, 1, None)
    assert not recorder.enter(0, 7, 1, None)
    recorder.returned(0, 9, 1)  # an abandoned attempt that ends after its slot was given on
    assert not recorder.sending(0, 9, 1)
    assert recorder.read(0) == SlotState(7, 1, Phase.ENTERED, True)


@pytest.mark.promise("S132")
def test_the_last_moment_for_entry_is_checked_under_the_lock(recorder: Recorder) -> None:
    assert recorder.claim(0, 7, 1)
    assert not recorder.enter(0, 7, 1, 100, lambda: 101)
    assert recorder.read(0) == SlotState(7, 1, Phase.CLAIMED, False)
    held = []

    def now_us() -> int:
        with_another = Recorder.open(recorder.path)
        held.append(with_another.revoke(0, 7, 1) is None)
        with_another.close()
        return 100

    assert recorder.enter(0, 7, 1, 100, now_us)
    assert held == [True], "the clock must be asked while nobody else can move the slot"


@pytest.mark.promise("S90")
def test_what_was_revoked_before_the_entry_never_enters(recorder: Recorder) -> None:
    successor = Recorder.open(recorder.path)
    assert recorder.claim(0, 7, 1)
    assert successor.revoke(0, 7, 1) is Phase.CLAIMED
    assert not recorder.enter(0, 7, 1, None)
    assert successor.revoke(0, 7, 1) is Phase.CLAIMED, "who was interrupted before he recorded it asks again"
    assert recorder.read(0) == SlotState(7, 1, Phase.REVOKED, False)
    successor.close()


def test_an_entry_that_was_won_first_is_not_taken_back(recorder: Recorder) -> None:
    successor = Recorder.open(recorder.path)
    assert recorder.claim(0, 7, 1)
    assert recorder.enter(0, 7, 1, None)
    assert successor.revoke(0, 7, 1) is Phase.ENTERED
    assert recorder.read(0) == SlotState(7, 1, Phase.ENTERED, True)
    recorder.returned(0, 7, 1)
    assert successor.revoke(0, 7, 1) is Phase.RETURNED
    successor.close()


def test_sending_is_contested_only_where_it_is_announced(recorder: Recorder) -> None:
    successor = Recorder.open(recorder.path)
    for slot in (0, 1):
        assert recorder.claim(slot, 7, slot)
        assert recorder.enter(slot, 7, slot, None)
    assert successor.revoke(0, 7, 0, announces_sending=True) is Phase.ENTERED
    assert not recorder.sending(0, 7, 0)
    recorder.returned(0, 7, 0)
    assert successor.revoke(0, 7, 0, announces_sending=True) is Phase.ENTERED
    assert recorder.read(0) == SlotState(7, 0, Phase.REVOKED, True)
    assert recorder.sending(1, 7, 1)
    assert successor.revoke(1, 7, 1, announces_sending=True) is Phase.SENDING
    successor.close()


def test_a_slot_of_another_attempt_or_a_free_one_answers_nothing(recorder: Recorder) -> None:
    assert recorder.revoke(0, 7, 1) is None
    assert recorder.claim(0, 7, 1)
    assert recorder.revoke(0, 7, 2) is None
    assert recorder.revoke(0, 8, 1) is None
    assert recorder.revoke(SLOTS, 7, 1) is None
    assert recorder.read(0) == SlotState(7, 1, Phase.CLAIMED, False)


@pytest.mark.parametrize("byte", range(28))
def test_a_torn_slot_is_not_believed_whichever_byte_is_wrong(recorder: Recorder, byte: int) -> None:
    assert recorder.claim(5, 7, 1)
    with recorder.path.open("r+b") as file:
        file.seek(offset(5) + byte)
        wrong = file.read(1)[0] ^ 0x01
        file.seek(offset(5) + byte)
        file.write(bytes([wrong]))
    assert recorder.read(5) is None
    assert recorder.revoke(5, 7, 1) is None
    assert not recorder.enter(5, 7, 1, None), "and nothing is entered on it"
    assert not recorder.claim(5, 8, 1)
    assert recorder.find(7, 1) is None
    recorder.clear(5)
    assert recorder.claim(5, 8, 1)


def test_a_slot_that_was_moved_to_another_place_is_not_believed(recorder: Recorder) -> None:
    assert recorder.claim(5, 7, 1)
    with recorder.path.open("r+b") as file:
        file.seek(offset(5))
        slot = file.read(32)
        file.seek(offset(6))
        file.write(slot)
    assert recorder.read(6) is None


def test_slots_are_found_by_their_attempt(recorder: Recorder) -> None:
    for slot, attempt in ((2, 1), (9, 3), (4, 2)):
        assert recorder.claim(slot, 7, attempt)
    assert recorder.find(7, 3) == 9
    assert recorder.find(7, 4) is None
    assert recorder.highest_attempt(7) == 3
    assert recorder.highest_attempt(8) is None
    recorder.clear(9)
    assert recorder.highest_attempt(7) == 2


def test_heartbeats_are_seen_from_outside(recorder: Recorder) -> None:
    with Child(OBSERVER + "for _ in sys.stdin: print(recorder.counter)", recorder.path) as observer:
        assert observer.ask() == "0"
        recorder.beat()
        recorder.beat()
        assert observer.ask() == "2"


OWNER = """
import os, sys
from pathlib import Path
from settled.execution.recorder import Recorder
recorder = Recorder.create(Path(sys.argv[1]), 4, "killed", "boot1")
recorder.claim(0, 10, 1)
recorder.claim(1, 11, 1); recorder.enter(1, 11, 1, None)
recorder.claim(2, 12, 1); recorder.enter(2, 12, 1, None); recorder.sending(2, 12, 1)
recorder.beat()
print("written")
input()
"""


def test_phases_survive_the_kill_of_their_writer(tmp_path: Path) -> None:
    with Child(OWNER, tmp_path / "flight") as owner:
        assert owner.hear() == "written"
        owner.kill()
    seen = Recorder.open(tmp_path / "flight", incarnation="killed", boot_id="boot1")
    assert [seen.revoke(slot, 10 + slot, 1) for slot in range(3)] == [Phase.CLAIMED, Phase.ENTERED, Phase.SENDING]
    assert seen.counter == 1
    seen.close()


RACER = """
import sys
from pathlib import Path
from settled.execution.recorder import Phase, Recorder
recorder, verb = Recorder.open(Path(sys.argv[1])), sys.argv[2]
act = {
    "enter": lambda slot, row: recorder.enter(slot, row, 1, None),
    "revoke": lambda slot, row: recorder.revoke(slot, row, 1) is Phase.CLAIMED,
    "send": lambda slot, row: recorder.sending(slot, row, 1),
    "withdraw": lambda slot, row: recorder.revoke(slot, row, 1, announces_sending=True) is Phase.ENTERED,
}[verb]
order = range(recorder.slots) if verb in ("enter", "send") else range(recorder.slots - 1, -1, -1)
print("ready")
for row in sys.stdin:
    won = [slot for slot in order if act(slot, int(row))]
    print(*won)
"""


@pytest.mark.promise("S90")
@pytest.mark.parametrize(("runner", "judge"), [("enter", "revoke"), ("send", "withdraw")])
def test_of_two_processes_that_contest_a_slot_exactly_one_wins(tmp_path: Path, runner: str, judge: str) -> None:
    slots = 500
    recorder = Recorder.create(tmp_path / "flight", slots, "raced", "boot1")
    wins = {runner: 0, judge: 0}
    with Child(RACER, recorder.path, runner) as one, Child(RACER, recorder.path, judge) as other:
        assert one.hear() == other.hear() == "ready"
        for row in range(1, 11):
            for slot in range(slots):
                recorder.clear(slot)
                assert recorder.claim(slot, row, 1)
                assert runner == "enter" or recorder.enter(slot, row, 1, None)
            one.tell(str(row))  # they start at opposite ends and meet in the middle
            other.tell(str(row))
            ran, withdrawn = (set(map(int, child.hear().split())) for child in (one, other))
            assert not ran & withdrawn, "both believed that they had won"
            assert ran | withdrawn == set(range(slots))
            for slot in range(slots):
                seen = recorder.read(slot)
                assert seen is not None
                assert (seen.phase is Phase.REVOKED) == (slot in withdrawn)
            wins[runner] += len(ran)
            wins[judge] += len(withdrawn)
    assert min(wins.values()) > 0, f"they never met: {wins}"
    recorder.close()


def test_threads_of_one_process_contest_a_slot_too(recorder: Recorder) -> None:
    for row in range(1, 21):
        for slot in range(SLOTS):
            recorder.clear(slot)
            assert recorder.claim(slot, row, 1)
        won: list[int] = []
        at_once = threading.Barrier(4)

        def race(row: int = row, won: list[int] = won, at_once: threading.Barrier = at_once) -> None:
            at_once.wait()
            won.extend(slot for slot in range(SLOTS) if recorder.enter(slot, row, 1, None))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(SLOTS))


def test_a_stopped_holder_of_a_slot_lets_nobody_believe_and_nobody_wait_long(recorder: Recorder) -> None:
    holder = OBSERVER + "print(recorder._lock(0))\ninput()\nrecorder._unlock(0)\nprint('free')\ninput()"
    assert recorder.claim(0, 7, 1)
    assert recorder.claim(1, 8, 1)
    with Child(holder, recorder.path) as child:
        assert child.hear() == "True"
        child.signal(signal.SIGSTOP)
        assert recorder.revoke(0, 7, 1) is None
        assert not recorder.enter(0, 7, 1, None)
        assert recorder.revoke(1, 8, 1) is Phase.CLAIMED, "other slots are not concerned"
        child.signal(signal.SIGCONT)
        assert child.ask() == "free"
        assert recorder.revoke(0, 7, 1) is Phase.CLAIMED


def test_a_forked_child_contests_with_its_parent(recorder: Recorder) -> None:
    assert recorder.claim(0, 7, 1)
    assert recorder._lock(0)
    child = os.fork()
    if child == 0:
        os._exit(0 if recorder.revoke(0, 7, 1) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child went past a lock that its parent holds"
    recorder._unlock(0)
    child = os.fork()
    if child == 0:
        os._exit(0 if recorder.revoke(0, 7, 1) is Phase.CLAIMED else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not recorder.enter(0, 7, 1, None)


def test_a_child_forked_under_the_lock_does_not_keep_it_for_a_dead_parent(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from settled.execution.recorder import Recorder
recorder = Recorder.create(Path(sys.argv[1]), 1, "forked", "boot1")
recorder.claim(0, 7, 1)
recorder._lock(0)
if os.fork() == 0:
    os.close(0)
    print("up")
    time.sleep(600)
time.sleep(600)
"""
    with Child(code, tmp_path / "flight") as parent:
        assert parent.hear() == "up"
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0])
        parent.kill()
        try:
            seen = Recorder.open(tmp_path / "flight")
            assert seen.revoke(0, 7, 1) is Phase.CLAIMED
            seen.close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_another_boot_or_incarnation_is_refused(recorder: Recorder) -> None:
    with pytest.raises(RecorderUnreadableError, match="under boot boot1, not boot2"):
        Recorder.open(recorder.path, boot_id="boot2")
    with pytest.raises(RecorderUnreadableError, match="belongs to incarnation incarnation1"):
        Recorder.open(recorder.path, incarnation="other")


def test_a_copy_that_was_put_in_its_place_is_refused(recorder: Recorder) -> None:
    assert recorder.claim(0, 7, 1)
    shutil.copy2(recorder.path, recorder.path.with_suffix(".copy"))
    assert recorder.enter(0, 7, 1, None)
    os.replace(recorder.path.with_suffix(".copy"), recorder.path)
    with pytest.raises(RecorderUnreadableError, match="copy"):
        Recorder.open(recorder.path)


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "long", "header", "link", "folder"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "flight"
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        Recorder.create(path, 4, "damaged", "boot1").close()
    match damage:
        case "empty":
            os.truncate(path, 0)
        case "short":
            os.truncate(path, path.stat().st_size - 1)
        case "long":
            os.truncate(path, path.stat().st_size + 32)
        case "header":
            with path.open("r+b") as file:
                file.seek(16)
                file.write(b"other")
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecorderUnreadableError, match="stay unknown"):
        Recorder.open(path)


def test_an_existing_file_is_never_overwritten(recorder: Recorder) -> None:
    with pytest.raises(FileExistsError):
        Recorder.create(recorder.path, 4, "second", "boot1")
    assert Recorder.open(recorder.path).incarnation == "incarnation1"


ON_A_FULL_DISK = """
import ctypes, os, sys
from pathlib import Path
from settled.execution.recorder import Recorder
libc, here = ctypes.CDLL(None), sys.argv[1].encode()
CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x44000
if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) or libc.mount(b"t", here, b"tmpfs", 0, b"size=16k"):
    print("cannot mount")
    sys.exit()
try:
    Recorder.create(Path(sys.argv[1]) / "flight", int(sys.argv[2]), "full", "boot1")
    print("created")
except OSError as error:
    print(error.errno, os.listdir(here))
"""


@pytest.mark.parametrize(("slots", "said"), [(64, "created"), (4096, f"{errno.ENOSPC} []")])
def test_a_full_disk_is_an_error_and_not_the_death_of_the_worker(tmp_path: Path, slots: int, said: str) -> None:
    with Child(ON_A_FULL_DISK, tmp_path, slots) as child:
        heard = child.hear()
        if heard == "cannot mount":
            pytest.skip("needs the right to mount a tmpfs")
        assert heard == said, "a hole in the file is a SIGBUS when it is written to"


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o2770, 0o660), (0o700, 0o600)])
def test_the_file_has_the_mode_that_its_folder_calls_for(tmp_path: Path, folder_mode: int, file_mode: int) -> None:
    tmp_path.chmod(folder_mode)
    umask = os.umask(0o077)
    try:
        Recorder.create(tmp_path / "flight", 4, "modes", "boot1").close()
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "flight").stat().st_mode) == file_mode


def test_after_closing_nothing_enters(recorder: Recorder) -> None:
    assert recorder.claim(0, 7, 1)
    recorder.close()
    recorder.close()
    assert not recorder.enter(0, 7, 1, None)
    assert recorder.revoke(0, 7, 1) is None
