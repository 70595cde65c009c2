"""Incarnations that died without owning anything: noted as ended, their files removed, and nothing else touched."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from settled import App, Status
from settled.execution.incarnation import MARK
from settled.store import workers
from settled.testing import VirtualClock
from tests.worker.conftest import MakeHand
from tests.worker.harness import Hand, K, declare, dies, entered, silent, submit, timed_out


def living(app: App) -> set[int]:
    with app.ledger.read() as transaction:
        return {one.id for one in workers.live(transaction)}


def files(app: App) -> set[str]:
    """Return the stems of what lies in the run directory for incarnations."""
    return {path.stem for path in app.ledger.run_directory.iterdir() if path.suffix in (".lock", ".recorder", ".bell")}


def name(worker: Hand) -> str:
    return worker.presence.incarnation.id


@pytest.mark.promise("S31", part="a dead incarnation that owns nothing is noted as ended, and its files are removed")
def test_a_dead_incarnation_that_owned_nothing_is_noted_and_its_files_removed(app: App, hand: MakeHand) -> None:
    declare(app)
    dead, alive, observer = hand(), hand(), hand()
    dies(dead)
    assert observer.sweep("leases").moved == 0
    assert living(app) == {alive.presence.id, observer.presence.id}
    assert files(app) == {name(alive), name(observer)}


def test_a_living_worker_looks_for_them_once_in_a_lease(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    observer, dead = hand(), hand()
    observer.sweep("leases")
    dies(dead)
    clock.advance(29)
    observer.sweep("leases")
    assert dead.presence.id in living(app)
    clock.advance(2)
    observer.sweep("leases")
    assert dead.presence.id not in living(app) and name(dead) not in files(app)


def test_the_files_of_an_owner_stay_until_its_last_attempt_is_fenced(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, announces_sending=False)
    submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={MARK: name(owner)})
    try:
        dies(owner)
        observer.sweep("leases")
        clock.advance(31)
        observer.sweep("leases")
        observer.sweep("retention")
        assert app.get("pay:1").status is not Status.DISPATCHED
        assert name(owner) in files(app)  # its child may still send: only these files can show when it no longer can
    finally:
        child.kill()
        child.wait()
    clock.advance(31)
    assert observer.sweep("leases").moved == 1
    observer.sweep("retention")
    assert app.get("pay:1").attempt_records[0]["fence"] == "process_gone"
    assert name(owner) not in files(app)


def test_an_attempt_without_a_fence_keeps_the_files_of_its_own_incarnation_only(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, dispatch="handoff", isolation="process")
    submit(app, 1)
    owner, other, observer = hand(), hand(), hand()
    owner.start()
    entered(owner)
    dies(owner)
    dies(other)
    observer.sweep("leases")
    clock.advance(31)
    observer.sweep("leases")
    observer.sweep("retention")
    assert name(other) not in files(app)


def test_an_earlier_attempt_that_may_still_run_keeps_the_files_of_its_owner_while_a_later_one_is_under_way(
    app: App, clock: VirtualClock, hand: MakeHand
) -> None:
    """Under a key guarantee without a stated end a second attempt may run beside the first, which then still waits for a fence."""
    declare(app, announces_sending=False, **K)
    submit(app, 1)
    first, second, observer = hand(), hand(), hand()
    job = first.start()
    entered(first)
    first.step(timed_out(job, clock.now()))
    clock.advance(5)
    assert second.start().attempt == 2
    dies(first)
    clock.advance(31)
    observer.sweep("leases")
    observer.sweep("retention")
    assert app.get("pay:1").status is Status.DISPATCHED
    assert name(first) in files(app)


def test_who_leaves_gives_its_probes_back(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    declare(app, outcome_probe=silent)
    submit(app, 1)
    leaves, stays = hand(), hand()
    leaves.step(timed_out(leaves.start(), clock.now()))
    leaves.probe()
    leaves.close()
    assert stays.probe().operation_id == "pay:1"


@pytest.mark.parametrize("proof", ["missing", "replaced", "held"])
def test_what_is_not_proved_dead_is_left_as_it_is(proof: str, app: App, hand: MakeHand) -> None:
    other, observer = hand(), hand()
    path = other.presence.incarnation.lock_path
    if proof != "held":
        dies(other)
        path.rename(path.with_suffix(".old"))
    if proof == "replaced":
        path.touch()
    observer.sweep("leases")
    observer.sweep("retention")
    assert other.presence.id in living(app)
    assert path.with_suffix(".recorder").exists()


@pytest.mark.promise("S114", part="a copy, adopted or not, removes no file of the original's workers")
def test_a_copy_removes_no_file_of_the_original(app: App, tmp_path: Path, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    dead = hand()
    dies(dead)
    before = files(app)
    app.ledger.close()
    (tmp_path / "copy").mkdir()
    shutil.copy(app.ledger.path, tmp_path / "copy/settled.db")
    copy = App(tmp_path / "copy" / "settled.db", clock=clock)
    declare(copy)
    observer = hand(app=copy)
    for name_of_sweep in ("leases", "retention"):
        observer.sweep(name_of_sweep)
    assert files(app) == before
    copy.adopt(reason="moved on")
    clock.advance(60)
    for name_of_sweep in ("leases", "retention"):
        observer.sweep(name_of_sweep)
    assert files(app) == before
    copy.close()
