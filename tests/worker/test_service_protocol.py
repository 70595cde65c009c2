"""What a worker says to its service manager, and that it says nothing of life when something in it has died."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import Outcome, Status
from tests.conftest import eventually
from tests.lib.execution.outside import is_alive
from tests.worker.manager import Manager
from tests.worker.services import Place, fresh
from tests.worker.test_worker import HOLD_THE_LOCK


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.close()


@pytest.mark.promise("S59", part="READY after the first good tick, STATUS with counts, RELOADING, STOPPING")
@pytest.mark.promise("S57", part="EXTEND_TIMEOUT is sent while a handler still runs")
def test_a_worker_tells_its_manager_from_its_first_good_tick_to_its_end(here: Place, manager: Manager) -> None:
    one = here.submit("nap_thread", reference := fresh())
    worker = here.worker(settings=manager.environ)
    eventually(lambda: manager.count("READY=1"), seconds=30)
    eventually(lambda: worker.told("worker.ready"))
    pings = manager.count("WATCHDOG=1")
    eventually(lambda: manager.count("WATCHDOG=1") > pings + 1, seconds=10)
    here.marked(f"entered-{reference}")
    eventually(lambda: [text for text in manager.values("STATUS") if text.startswith("1 running")], seconds=20)
    worker.signal(signal.SIGHUP)
    eventually(lambda: worker.told("worker.reloaded"), seconds=20)
    eventually(lambda: manager.count("READY=1") == 2)
    told = manager.told()
    at = told.index("RELOADING=1")
    assert told[at + 1].startswith("MONOTONIC_USEC=") and told[at + 2] == "READY=1"
    assert abs(int(told[at + 1].partition("=")[2]) - time.monotonic_ns() // 1000) < 60_000_000
    worker.signal(signal.SIGTERM)
    eventually(lambda: manager.count("STOPPING=1") == 1)
    eventually(lambda: len(manager.values("EXTEND_TIMEOUT_USEC")) >= 2, seconds=15)
    here.mark(f"go-{reference}")
    assert worker.ended() == 0
    assert here.app.get(one).result() == "rested"


@pytest.mark.promise("S59", part="no READY while the store cannot be written, and its reason as STATUS")
def test_a_worker_whose_store_is_locked_waits_and_is_not_ready(here: Place, manager: Manager) -> None:
    holder = here.child(HOLD_THE_LOCK, here.database)
    assert holder.hear() == "held"
    worker = here.worker(settings=manager.environ)
    eventually(lambda: [text for text in manager.values("STATUS") if text.startswith("waiting for the store")], seconds=30)
    assert manager.count("READY=1") == 0
    assert holder.ask() == "free"
    eventually(lambda: manager.count("READY=1"), seconds=20)
    worker.stop()


def test_what_a_handler_starts_cannot_speak_for_the_service(here: Place, manager: Manager) -> None:
    here.submit("nap_process", reference := fresh())
    worker = here.worker(settings=manager.environ)
    pid = here.marked(f"entered-{reference}")
    names = {entry.partition(b"=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
    assert b"SHOP" in names and not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"}
    here.mark(f"go-{reference}")
    worker.stop()


HUNG = {"SETTLED_WORKER__HUNG_SECONDS": "2", "SETTLED_WORKER__DRAIN_SECONDS": "1"}


@pytest.mark.promise("S55", part="a frozen sweep, a frozen pump or a dead thread: no more pings, and the worker ends itself")
@pytest.mark.parametrize(
    ("point", "contract", "said"),
    [
        ("hang-sweep", "append_thread", "worker.unwell"),
        ("hang-pump", "append_thread", "worker.hung"),
        ("dead-thread", "short_thread", "worker.unwell"),
    ],
)
def test_a_worker_of_which_a_part_hangs_stops_pinging_and_ends_itself(
    here: Place, manager: Manager, point: str, contract: str, said: str
) -> None:
    worker = here.worker(point=point, settings={**manager.environ, **HUNG})
    eventually(lambda: manager.count("WATCHDOG=1"), seconds=30)
    here.mark("hang")
    here.submit(contract, fresh())
    here.marked("hung")
    assert worker.ended(40) == 1
    assert worker.told(said)
    eventually(lambda: worker.family() == [])
    told = manager.told()
    if said == "worker.unwell":
        why = next(at for at, line in enumerate(told) if line.startswith("STATUS=unwell: "))
        assert "WATCHDOG=1" not in told[why:]
    else:
        assert "most recent call first" in worker.log.read_text()


@pytest.mark.promise("S55", part="time in which the whole process stood still is held against nothing")
def test_a_worker_that_was_stopped_for_longer_than_its_limit_goes_on(here: Place, manager: Manager) -> None:
    worker = here.worker(settings={**manager.environ, **HUNG}).ready()
    worker.signal(signal.SIGSTOP)
    until = time.monotonic() + 4
    eventually(lambda: time.monotonic() > until)
    worker.signal(signal.SIGCONT)
    pings = manager.count("WATCHDOG=1")
    eventually(lambda: manager.count("WATCHDOG=1") > pings + 2, seconds=20)
    one = here.submit("append_thread", fresh())
    assert here.settled(one)[0].status is Status.CONFIRMED
    worker.stop()


@pytest.mark.promise("S59", part="a reload takes over what can change, names what needs a restart, and refuses what is wrong")
def test_a_reload_takes_over_good_settings_and_refuses_bad_ones(here: Place, manager: Manager) -> None:
    file = here.folder / "settled.toml"
    file.write_text("[worker]\ndrain_seconds = 60\n")
    worker = here.worker("--config", str(file), settings=manager.environ).ready()
    file.write_text("[worker]\ndrain_seconds = -1\n")
    worker.signal(signal.SIGHUP)
    (refused,) = eventually(lambda: worker.told("worker.reload_refused"), seconds=20)
    assert "worker.drain_seconds" in refused["error"]
    eventually(lambda: [text for text in manager.values("STATUS") if text.startswith("reload refused")])
    file.write_text("[worker]\ndrain_seconds = 0.5\nslots = 3\n[sweeps.retention]\nevery_seconds = 7\n")
    worker.signal(signal.SIGHUP)
    (reloaded,) = eventually(lambda: worker.told("worker.reloaded"), seconds=20)
    assert reloaded["changed"] == ["sweeps.retention.every_seconds", "worker.drain_seconds"]
    (left,) = eventually(lambda: worker.told("worker.reload_needs_restart"))
    assert left["settings"] == ["worker.slots"]
    here.submit("nap_thread", reference := fresh())
    here.marked(f"entered-{reference}")
    worker.signal(signal.SIGTERM)
    assert worker.ended(20) == 0  # by the new half second, not by the 60 before


@pytest.mark.promise("S59", part="SIGTERM and SIGHUP while the app is being imported")
def test_signals_during_the_import_of_the_app_are_heard(here: Place, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import effects\neffects.mark('importing')\neffects.wait_for_mark('imported')\napp = effects.app\n")
    path = os.pathsep.join([str(tmp_path), here.environ["PYTHONPATH"]])
    settings = {"PYTHONPATH": path}
    worker = here.worker("--app", "slow:app", settings=settings)
    here.marked("importing")
    worker.signal(signal.SIGHUP)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert "Traceback" not in worker.log.read_text()
    (here.marks / "importing").unlink()
    worker = here.worker("--app", "slow:app", settings=settings)
    here.marked("importing")
    worker.signal(signal.SIGHUP)
    here.mark("imported")
    worker.ready().stop()


def test_a_watchdogs_abort_shows_where_each_thread_was(here: Place) -> None:
    worker = here.worker().ready()
    worker.signal(signal.SIGABRT)
    assert worker.ended() == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in worker.log.read_text()


def test_a_paused_worker_says_so_and_dispatches_nothing(here: Place, manager: Manager) -> None:
    one = here.submit("append_thread", fresh())
    worker = here.worker("--paused", settings=manager.environ)
    eventually(lambda: [text for text in manager.values("STATUS") if text.startswith("paused, nothing is dispatched")], seconds=30)
    assert (here.app.get(one).status, here.app.get(one).attempts) == (Status.PREPARED, 0)
    worker.stop()
    assert here.story(one) == ["submitted"]


@pytest.mark.promise("S57", part="a handler of thirty seconds is either recorded or honestly unknown")
@pytest.mark.parametrize(("drain", "ends"), [("60", "returned"), ("1", "stopped")])
def test_a_stop_during_a_long_handler_ends_in_a_record_or_in_an_honest_unknown(here: Place, drain: str, ends: str) -> None:
    one = here.submit("nap_process", reference := fresh(), seconds=30)
    worker = here.worker(settings={"SETTLED_WORKER__DRAIN_SECONDS": drain})
    pid = int(here.marked(f"entered-{reference}", seconds=60))
    worker.signal(signal.SIGTERM)
    eventually(lambda: worker.told("worker.draining"))
    if ends == "returned":
        here.mark(f"go-{reference}")
    assert worker.ended() == 0
    assert here.story(one)[:3] == ["submitted", "dispatched", ends]
    assert here.app.get(one).outcome is (Outcome.CONFIRMED if ends == "returned" else Outcome.UNKNOWN)
    assert not is_alive(pid)
