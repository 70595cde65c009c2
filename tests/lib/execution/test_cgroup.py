"""What a handed control group adds, tried with real groups; and what a missing one does not prove."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.execution import cgroup
from settled.execution.cgroup import group_is_empty, kill_group, make_group, pids_in, remove_group
from settled.execution.incarnation import Incarnation
from tests.conftest import eventually
from tests.lib.execution.groups import enter, handed_group
from tests.lib.execution.outside import is_alive

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]


@pytest.fixture
def handed() -> Iterator[Path]:
    with handed_group() as group:
        yield group


def sleeping_in(group: Path) -> subprocess.Popen[bytes]:
    """Start a process in `group` that sleeps; return once it is there."""
    process = subprocess.Popen(enter(group, SLEEP), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    process.stdout.close()
    return process


FINDER = "from settled.execution.cgroup import find_handed; print(find_handed())"


def found_from(group: Path) -> str:
    done = subprocess.run(enter(group, [sys.executable, "-c", FINDER]), capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


@pytest.mark.promise("S93", part="a group is used only where it was handed: being allowed to write is not enough")
def test_a_group_is_used_only_where_it_was_handed_to_the_worker(handed: Path) -> None:
    inside = make_group(handed, "main")
    assert inside is not None
    assert found_from(handed) == found_from(inside) == str(handed)  # its own, or the one above it
    below = make_group(inside, "deeper")
    assert below is not None
    assert found_from(below) == "None"
    os.removexattr(handed, "user.delegate")
    assert found_from(handed) == "None"


def test_a_group_is_empty_only_when_nothing_lives_in_it_or_below_it(handed: Path) -> None:
    below = make_group(handed, "below")
    assert below is not None
    assert group_is_empty(handed) is True
    process = sleeping_in(below)
    assert (group_is_empty(handed), pids_in(handed)) == (False, [process.pid])
    remove_group(handed)
    assert below.exists(), "the kernel keeps what is lived in"
    kill_group(handed)
    assert process.wait(10) == -9
    eventually(lambda: group_is_empty(handed))
    remove_group(handed)
    assert group_is_empty(handed) is None


@pytest.mark.promise("S93", part="a group that is not there, or cannot be read, proves nothing")
def test_a_group_that_is_not_there_or_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    assert group_is_empty(tmp_path / "removed") is None
    assert group_is_empty(tmp_path) is False  # there, and no control group: not shown to be empty
    assert make_group(tmp_path, "new") is None and not (tmp_path / "new").exists()
    assert make_group(tmp_path / "missing", "new") is None


def test_a_kernel_that_kills_no_group_at_once_has_it_killed_one_by_one(handed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError("cgroup.kill")

    monkeypatch.setattr(cgroup, "_write", refuse)
    processes = [sleeping_in(handed) for _ in range(3)]
    kill_group(handed)
    assert [process.wait(10) for process in processes] == [-9, -9, -9]


def test_an_incarnation_has_a_group_of_its_own_and_takes_it_along(handed: Path, tmp_path: Path) -> None:
    mark = os.environ.get("SETTLED_INCARNATION")
    try:
        me = Incarnation.start(tmp_path, handed=handed)
        assert me.cgroup == handed / f"settled-{me.id}" and me.cgroup.exists()
        process = sleeping_in(me.cgroup)
        me.release()
        assert me.cgroup.exists() and is_alive(process.pid), "something lives there"
        kill_group(me.cgroup)
        process.wait(10)
    finally:
        if mark is None:
            os.environ.pop("SETTLED_INCARNATION", None)
        else:
            os.environ["SETTLED_INCARNATION"] = mark


def test_without_a_handed_group_nothing_changes(tmp_path: Path) -> None:
    mark = os.environ.get("SETTLED_INCARNATION")
    me = Incarnation.start(tmp_path)
    assert me.cgroup is None
    me.release()
    if mark is None:
        os.environ.pop("SETTLED_INCARNATION", None)
