"""A disk that is really full, under a real worker: no dispatch without a stored mark, and nothing lost when there is room again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from settled import App, OperationNotFoundError, Status
from settled.clock import wall_us
from settled.store.creation import create_ledger
from tests.conftest import eventually
from tests.soak.small_disk import Disk, small_disk
from tests.worker.apps import effects
from tests.worker.services import Place, fresh


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path, 24) as disk:
        if not disk.is_small:
            pytest.skip("NOT RUN: a small file system needs root and mount(2); `full` in tests/worker/faults.py stands for it")
        yield disk


@pytest.mark.promise("S100", part="a real full disk: outcomes are kept and recorded, calls 1 each")
@pytest.mark.promise("X3", part="a full disk: nothing is accepted, nothing is dispatched")
def test_a_full_disk_stops_dispatch_and_loses_nothing(disk: Disk, make_place: Callable[..., Place]) -> None:
    here = make_place()
    here.app.close()
    here.database = disk.folder / "settled.db"
    here.environ["SETTLED_DATABASE"] = str(here.database)
    create_ledger(here.database, at_us=wall_us())
    here.app = App(here.database)
    effects.declare(here.app)
    runs, waits, late = fresh(), fresh(), fresh()
    first = here.submit("charge_thread", runs, hold="before")
    second = here.submit("charge_thread", waits)
    worker = here.worker(settings={"SETTLED_WORKER__SLOTS": "1"})
    here.marked(f"entered-{runs}")
    disk.fill()
    refused = here.settled_command("submit", "charge_thread", "--operation-id", f"charge_thread:{late}", "--args", "{}")
    assert refused.returncode == 75, refused
    here.mark(f"go-{runs}")  # its slot is free, and its outcome is owed
    eventually(lambda: worker.told("worker.store_unavailable"), seconds=30)
    assert here.charges()[runs] == 1
    assert here.lines("calls") == {runs: 1}  # the second is not dispatched: its mark could not be stored
    assert here.settled_command("health").returncode == 1
    disk.free()
    assert [one.status for one in here.settled(first, second)] == [Status.CONFIRMED] * 2
    assert here.lines("calls") == {runs: 1, waits: 1}
    assert here.app.get(first).attempts == here.app.get(second).attempts == 1
    assert here.settled_command("db", "check").returncode == 0
    worker.stop()
    here.close()


@pytest.mark.promise("X3", part="a disk that became read-only: nothing is accepted, nothing is dispatched")
def test_a_read_only_disk_is_named_and_a_worker_waits_for_it(disk: Disk, make_place: Callable[..., Place]) -> None:
    here = make_place()
    here.app.close()
    here.database = disk.folder / "settled.db"
    here.environ["SETTLED_DATABASE"] = str(here.database)
    create_ledger(here.database, at_us=wall_us())
    waits, late = fresh(), fresh()
    said = json.dumps({"reference": waits})
    taken = f"charge_thread:{waits}"  # by a process that ends: a file that is open for writing keeps a disk from this
    accepted = here.settled_command("submit", "charge_thread", "--app", "effects:app", "--operation-id", taken, "--args", said)
    assert accepted.returncode == 0, accepted
    disk.remount("ro")
    try:
        refused = here.settled_command("submit", "charge_thread", "--operation-id", f"charge_thread:{late}", "--args", "{}")
        assert refused.returncode == 78 and "mounted read-only" in refused.stderr, refused
        assert here.settled_command("health").returncode == 1
        worker = here.worker()
        eventually(lambda: worker.told("worker.waits_for_store"), seconds=60)
        assert here.lines("calls") == {}
    finally:
        disk.remount("rw")
    here.app = App(here.database)
    effects.declare(here.app)
    assert [one.status for one in here.settled(taken)] == [Status.CONFIRMED]
    with pytest.raises(OperationNotFoundError):
        here.app.get(f"charge_thread:{late}")
    assert here.lines("calls") == {waits: 1}
    worker.stop()
    here.close()
