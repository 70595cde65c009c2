"""Telling for real: loops, ledger and receivers are real, workers are real processes, and some are killed."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import App, NeedsReview, ProbeResult
from settled.config.escalation import EscalationSettings
from settled.config.settings import Settings
from settled.presence import Presence
from settled.store import incidents, outbox
from settled_worker.escalation import Escalation, escalation_of
from tests.conftest import eventually
from tests.worker.receivers import certificates, executable, http_receiver, smtp_server
from tests.worker.services import Place, fresh

Make = Callable[..., Escalation]


def review(arguments: dict[str, Any]) -> None:
    raise NeedsReview("look")


def ask_people(app: App, *numbers: int) -> list[str]:
    """Make operations that go to quarantine, without any worker."""
    if "pay" not in app.contracts:
        app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread", network_drain=0)(review)
    return [app.execute("pay", {"n": number}).operation_id for number in numbers]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[App]:
    made = App(tmp_path / "real.db")
    made.create_database()
    yield made
    made.close()


@pytest.fixture
def telling(ledger: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Start the telling of one more incarnation: `telling(channels={…}, steps=[…])`."""
    monkeypatch.setenv("HOOK", "secret")
    made: list[tuple[Escalation, Presence]] = []

    def make(*, channels: dict[str, Any], steps: list[str], start: bool = True, **more: Any) -> Escalation:
        ladders = {"default": {"steps": [{"channel": name} for name in steps]}}
        section = EscalationSettings.model_validate({"channels": channels, "ladders": ladders, **more})
        presence = Presence(ledger.shell, kind="worker", contracts=(), slots=1)
        one = escalation_of(ledger, Settings(escalation=section), presence.id)
        one.poll_seconds = 0.05
        made.append((one, presence))
        if start:
            one.start()
        return one

    yield make
    for one, presence in made:
        one.close()
        presence.close()


def webhook(url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "webhook", "url": url, "secret": {"env": "HOOK"}, "timeout_seconds": 5, **more}


def undelivered(app: App) -> list[outbox.Undelivered]:
    with app.ledger.read() as transaction:
        return outbox.undelivered(transaction)


def states(app: App) -> Counter[str]:
    with app.ledger.read() as transaction:
        found = [one.id for one in incidents.find_open(transaction, 1000)]
        return Counter(one.state for one in outbox.of_incidents(transaction, found))


@pytest.mark.promise("S64", part="a failing channel blocks no other and no sweep")
def test_a_hanging_channel_beside_a_live_one(ledger: App, telling: Make, tmp_path: Path) -> None:
    got = tmp_path / "got"
    page = executable(tmp_path, "page", f'cat >> "{got}"')
    with http_receiver("hang") as dead:
        channels = {"dead": webhook(dead.url, timeout_seconds=60), "live": {"kind": "command", "command": [page]}}
        one = telling(channels=channels, steps=["dead", "live"])
        ask_people(ledger, 1)
        eventually(lambda: dead.got, seconds=30)  # it hangs from here on, and its limit is a minute
        ask_people(ledger, 2, 3)
        eventually(lambda: got.exists() and len(got.read_text().splitlines()) == 3, seconds=30)
        began = time.monotonic()
        one.tick()  # what the sweep does
        assert time.monotonic() - began < 30 and len(dead.got) == 1
        eventually(lambda: {each.channel: each.notifications for each in undelivered(ledger)} == {"dead": 3})


@pytest.mark.promise("S64", part="a channel that was down gets everything after its recovery, with the same IDs; its failures can be seen")
def test_a_channel_that_comes_back_gets_everything_with_the_same_ids(ledger: App, telling: Make) -> None:
    with http_receiver("fail") as receiver:
        telling(channels={"hook": webhook(receiver.url)}, steps=["hook"])
        ask_people(ledger, 1, 2)
        eventually(lambda: len(receiver.got) >= 4, seconds=30)
        (queue,) = eventually(lambda: [each for each in undelivered(ledger) if each.error and each.attempts >= 2], seconds=30)
        assert (queue.channel, queue.notifications, queue.error) == ("hook", 2, "the receiver answered with HTTP status 500")
        receiver.manner = "ok"
        eventually(lambda: not undelivered(ledger), seconds=60)
    assert len(set(receiver.ids)) == 2 and min(Counter(receiver.ids).values()) >= 2
    bodies = {headers["webhook-id"]: set() for headers, _ in receiver.got}  # type: ignore[var-annotated]
    for headers, body in receiver.got:
        bodies[headers["webhook-id"]].add(body)
    assert all(len(each) == 1 for each in bodies.values())  # and the same text at every try


@pytest.mark.promise("S64", part="who answers too late is told again, with the same ID")
def test_an_answer_that_comes_too_late_is_none(ledger: App, telling: Make) -> None:
    with http_receiver("late") as receiver:
        telling(channels={"hook": webhook(receiver.url, timeout_seconds=0.3)}, steps=["hook"])
        ask_people(ledger, 1)
        eventually(lambda: len(receiver.got) >= 2, seconds=30)
        receiver.go.set()
        eventually(lambda: not undelivered(ledger), seconds=30)
    assert len(set(receiver.ids)) == 1 and len(receiver.ids) >= 2


def test_two_workers_deliver_each_notification_by_one_of_them(ledger: App, telling: Make) -> None:
    with http_receiver() as receiver:
        for _ in range(2):
            telling(channels={"hook": webhook(receiver.url)}, steps=["hook"], storm_count=1000)
        ask_people(ledger, *range(20))
        eventually(lambda: len(receiver.got) >= 20 and not undelivered(ledger), seconds=60)
        assert len(receiver.ids) == len(set(receiver.ids)) == 20


@pytest.mark.promise("S64")
def test_every_kind_is_told_through_every_channel_although_one_is_down_at_first(
    ledger: App, telling: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, got = certificates(tmp_path), tmp_path / "got"
    with http_receiver("fail") as hook, smtp_server(ours.context) as box:
        channels = {
            "hook": webhook(hook.url),
            "pager": {"kind": "command", "command": [executable(tmp_path, "page", f'cat >> "{got}"')]},
            "mail": {
                "kind": "email", "host": "127.0.0.1", "port": box.port, "ca_file": ours.file,
                "sender": "settled@example.org", "recipients": ["ops@example.org"],
            },
        }  # fmt: skip
        telling(channels=channels, steps=["hook", "pager", "mail", "log"], storm_count=1000)
        (lost,) = ask_people(ledger, 1)
        ledger.effect(name="plain", operation_id=lambda a: f"plain:{a['n']}", isolation="thread")(lambda arguments: 1)
        twice, early = (ledger.submit("plain", {"n": number}).operation_id for number in (1, 2))
        for reference in ("p1", "p2"):  # before any dispatch: a conflict, and then perhaps two effects
            ledger.add_evidence(operation_id=twice, source="webhook", result=ProbeResult.committed(provider_operation_id=reference))
        ledger.add_evidence(operation_id=early, source="webhook", result=ProbeResult.committed(provider_operation_id="p3"))
        with ledger.ledger.read() as transaction:
            found = incidents.find_open(transaction, 100)
        kinds = Counter(one.kind for one in found)
        assert {"quarantined", "conflict", "duplicate_suspected"} <= kinds.keys()
        eventually(lambda: got.exists() and len(got.read_text().splitlines()) == len(found), seconds=60)
        eventually(lambda: len(box.mails) == len(found), seconds=60)
        eventually(lambda: len(set(hook.ids)) == len(found), seconds=60)
        eventually(lambda: {each.channel for each in undelivered(ledger)} == {"hook"}, seconds=60)
        hook.manner = "ok"
        eventually(lambda: not undelivered(ledger), seconds=90)
        logged = [record.getMessage() for record in caplog.records if "incident.notified" in record.getMessage()]
        assert len(logged) == len(found)
        assert len(set(hook.ids)) == len(found) < len(hook.ids)
        assert lost in got.read_text()


@pytest.mark.promise("S64", part="what a dead worker had in hand is delivered by the next, with the same ID")
def test_what_a_dead_owner_had_in_hand_is_sent_by_another(ledger: App, telling: Make) -> None:
    ask_people(ledger, 1)
    with http_receiver() as receiver:
        channels = {"hook": webhook(receiver.url)}
        first = telling(channels=channels, steps=["hook"], start=False)
        first.tick()
        with ledger.ledger.write() as transaction:
            held = outbox.claim_next(transaction, "hook", first.me, ledger.shell.clock.now().wall_us)
        assert held is not None
        second = telling(channels=channels, steps=["hook"])
        for _ in range(5):
            second.tick()
        assert receiver.got == []  # its owner lives
        presences = [each for each in threading.enumerate() if each.name == "settled-escalation"]
        assert len(presences) == 1
        dies(first)
        eventually(lambda: receiver.ids == [held.delivery_id], seconds=30)
        eventually(lambda: not undelivered(ledger), seconds=30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_breaks_is_started_again_and_a_channel_that_raises_stops_nothing(ledger: App, telling: Make) -> None:
    class Breaks:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def send(self, message: Any) -> None:
            self.calls.append(message.delivery_id)
            if len(self.calls) == 1:
                raise KeyboardInterrupt  # what no loop of ours catches
            if len(self.calls) == 2:
                raise ZeroDivisionError

    channel = Breaks()
    one = telling(channels={"x": {"kind": "log"}}, steps=["x"], start=False)
    one.channels = {**one.channels, "x": channel}
    one.start()
    ask_people(ledger, 1)
    eventually(lambda: len(channel.calls) >= 3, seconds=30)
    eventually(lambda: not undelivered(ledger), seconds=30)
    assert len(set(channel.calls)) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_sweep_starts_a_watch_that_broke_again(ledger: App, telling: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = telling(channels={}, steps=["log"], start=False)
    broken = threading.Event()

    def breaks() -> None:
        broken.set()
        raise SystemExit

    monkeypatch.setattr(one, "_run", breaks)
    one.start()
    assert broken.wait(30)
    monkeypatch.undo()
    ask_people(ledger, 1)
    eventually(lambda: one._watch is not None and not one._watch.is_alive())
    one.tick()
    eventually(lambda: not undelivered(ledger), seconds=30)


def test_a_channel_that_is_no_longer_declared_keeps_its_queue_and_says_so(ledger: App, telling: Make) -> None:
    ask_people(ledger, 1)
    first = telling(channels={"old": {"kind": "log"}}, steps=["old"], start=False)
    first.tick()
    first.follow(EscalationSettings())
    first.tick()
    assert [each.channel for each in undelivered(ledger)] == ["old"]
    first.follow(EscalationSettings.model_validate({"channels": {"old": {"kind": "log"}}}))
    first.flush()
    assert undelivered(ledger) == []


def dies(one: Escalation) -> None:
    """What a SIGKILL leaves of its incarnation: a free lock, and its row."""
    from settled.store import workers

    with one.shell.ledger.read() as transaction:
        row = workers.find(transaction, {one.me})[one.me]
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") == row.lock_path:
                os.close(int(descriptor))
        except OSError:
            continue


# ------------------------------------------------------------------ real workers


def settings_file(place: Place, page: str) -> Path:
    file = place.folder / "night.toml"
    file.write_text(
        f'[escalation.channels.pager]\nkind = "command"\ncommand = ["{page}"]\n'
        '[escalation.ladders.default]\nsteps = [{ channel = "pager" }]\n'
    )
    return file


def quarantine_one(place: Place) -> str:
    return place.submit("nap_thread", fresh(), seconds=0)  # it raises at once, and nobody can be asked what became of it


def pages(place: Place) -> list[str]:
    got = place.folder / "got"
    return [json.loads(line)["delivery_id"] for line in got.read_text().splitlines()] if got.exists() else []


@pytest.mark.promise("S64", part="a worker killed between the move and the delivery: delivered, never lost")
def test_killed_between_the_move_and_the_delivery_it_is_delivered_all_the_same(here: Place) -> None:
    page = executable(here.folder, "page", f'cat >> "{here.folder}/got"')
    chosen = {"SETTLED_CONFIG": str(settings_file(here, page))}
    one = quarantine_one(here)
    assert here.worker(point="after-record", settings=chosen).ended() == -signal.SIGKILL
    assert here.app.get(one).status == "quarantined"
    assert pages(here) == [] and sum(each.notifications for each in undelivered(here.app)) == 1
    worker = here.worker(settings=chosen)
    eventually(lambda: not undelivered(here.app), seconds=30)
    assert len(pages(here)) == 1
    worker.stop()


@pytest.mark.promise("S64", part="a worker killed between the sending and its record: sent again with the same ID")
def test_killed_between_the_sending_and_its_record_it_is_sent_again_with_the_same_id(here: Place) -> None:
    kills_once = f'cat >> "{here.folder}/got"; if mkdir "{here.folder}/once"; then kill -9 $PPID; fi'
    chosen = {"SETTLED_CONFIG": str(settings_file(here, executable(here.folder, "page", kills_once)))}
    quarantine_one(here)
    assert here.worker(settings=chosen).ended() == -signal.SIGKILL
    (sent,) = pages(here)
    assert [each.notifications for each in undelivered(here.app)] == [1]
    worker = here.worker(settings=chosen)
    eventually(lambda: not undelivered(here.app), seconds=30)
    assert pages(here) == [sent, sent]
    worker.stop()


def test_a_sweep_by_hand_tells_what_is_due_and_a_worker_that_runs_once_does_too(here: Place) -> None:
    page = executable(here.folder, "page", f'cat >> "{here.folder}/got"')
    chosen = {"SETTLED_CONFIG": str(settings_file(here, page))}
    quarantine_one(here)
    assert here.worker("--once", settings=chosen).ended() == 0
    assert len(pages(here)) == 1
    ask_people(here.app, 7)
    here.environ["SETTLED_CONFIG"] = chosen["SETTLED_CONFIG"]
    ended = here.settled_command("-o", "json", "sweep", "run", "escalate")
    assert ended.returncode == 0, ended.stderr
    assert len(pages(here)) == 2 and undelivered(here.app) == []
