"""The metrics of a real worker are true, bounded, and what the documents and the alerts say."""

import contextlib
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from settled import Status
from settled.core.moment import Moment
from settled.core.words import FenceBasis
from settled_worker.watching.counting import Contracts, Counting
from settled_worker.watching.exposing import Exposition
from settled_worker.watching.names import BUCKETS, LEDGER, METRICS
from tests.cli.conftest import Terminal, app, terminal
from tests.conftest import eventually
from tests.worker.harness import Hand, declare, dies, entered, make_app, returned, submit, timed_out
from tests.worker.services import Place, Service, fresh
from tests.worker.watching.asking import connect, get, say, sock

__all__ = ["app", "terminal"]  # fixtures
ROOT = Path(__file__).parents[3]
Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(text: str) -> Samples:
    """Read the text format as a scraper does: by name and the values of its labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found[one.name, tuple(one.labels.values())] = one.value
    return found


def scrape(here: Place) -> Samples:
    code, body = get(sock(here.folder), "/metrics")
    return samples(body) if code == 200 else {}


def watched(here: Place, **settings: str) -> dict[str, str]:
    return {
        "SETTLED_HTTP__LISTEN": sock(here.folder),
        "SETTLED_HTTP__METRICS": "true",
        "SETTLED_METRICS__TEXTFILE": str(here.folder / "settled.prom"),
        "SETTLED_METRICS__TEXTFILE_SECONDS": "0.2",
        **settings,
    }


def test_a_real_worker_counts_what_it_does(here: Place) -> None:
    worker = here.worker(settings=watched(here))
    assert eventually(lambda: get(sock(here.folder), "/healthz"), seconds=30)
    eventually(lambda: get(sock(here.folder), "/readyz") == (200, "ready\n"), seconds=30)
    here.settled(*(here.submit("append_thread", fresh()) for _ in range(3)))
    unknown = here.submit("lose_thread", fresh())
    here.becomes(unknown, Status.OUTCOME_UNKNOWN, Status.QUARANTINED)
    here.app.pause(contract="append_thread", actor="ana", reason="a look")
    waiting = here.submit("append_thread", fresh())
    found = eventually(lambda: (seen := scrape(here)).get(("settled_operations", ("append_thread", "prepared"))) == 1 and seen, seconds=20)
    assert found["settled_operations", ("append_thread", "confirmed")] == 3
    assert found["settled_attempts_started_total", ("append_thread",)] == 3
    assert found["settled_attempts_ended_total", ("append_thread", "returned")] == 3
    assert found["settled_outcomes_total", ("append_thread", "confirmed")] == 3
    assert found["settled_handler_seconds_count", ("append_thread",)] == 3
    assert found["settled_handler_seconds_bucket", ("append_thread", "+Inf")] == 3
    assert found["settled_attempts_ended_total", ("lose_thread", "raised")] == 1
    assert found["settled_paused", ("contract",)] == 1 and found["settled_paused", ("all",)] == 0
    assert found["settled_workers_live", ()] == 1 and found["settled_ledger_readable", ()] == 1
    assert found["settled_sweep_runs_total", ("leases",)] > 0
    assert found["settled_disk_free_bytes", ()] > 0 and found["settled_ledger_bytes", ("database",)] > 0
    assert found["settled_worker_ready", ()] == 1
    eventually(lambda: scrape(here)["settled_oldest_due_seconds", ()] > 0, seconds=20)
    written = here.folder / "settled.prom"
    eventually(lambda: samples(written.read_text()).get(("settled_operations", ("append_thread", "confirmed"))) == 3)
    assert stat.S_IMODE(written.stat().st_mode) == 0o644
    worker.stop()
    assert not (here.folder / "http.sock").exists()
    assert here.app.get(waiting).status is Status.PREPARED


def test_a_draining_worker_lives_and_is_not_ready(here: Place) -> None:
    worker = here.worker(settings=watched(here))
    here.submit("nap_thread", reference := fresh())
    here.marked(f"entered-{reference}")
    worker.signal(signal.SIGTERM)
    eventually(lambda: get(sock(here.folder), "/readyz") == (503, "draining\n"), seconds=20)
    assert get(sock(here.folder), "/healthz")[0] == 200
    here.mark(f"go-{reference}")
    assert worker.ended() == 0


@pytest.mark.promise("S55", part="/healthz and /readyz say when the loop hangs")
def test_a_worker_whose_loop_hangs_says_so_until_it_ends_itself(here: Place) -> None:
    settings = watched(here, SETTLED_WORKER__HUNG_SECONDS="3", SETTLED_WORKER__DRAIN_SECONDS="1")
    worker = here.worker(point="hang-pump", settings=settings)
    eventually(lambda: get(sock(here.folder), "/readyz")[0] == 200, seconds=30)
    here.mark("hang")
    here.submit("append_thread", fresh())
    here.marked("hung")
    said: set[tuple[int, str]] = set()
    eventually(lambda: said.add(get(sock(here.folder), "/healthz")) or worker.process.poll() is not None, seconds=40)
    assert any(code == 503 and "has not come round" in body for code, body in said), said


@pytest.fixture
def flooded(here: Place) -> Iterator[Service]:
    """A worker whose endpoint is held by clients that never finish, and asked for nonsense all the time."""
    worker = here.worker(settings=watched(here))
    eventually(lambda: get(sock(here.folder), "/readyz")[0] == 200, seconds=30)
    held = [connect(sock(here.folder)) for _ in range(20)]
    for one in held:
        with contextlib.suppress(OSError):  # turned away
            one.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    yield worker
    for one in held:
        one.close()


def test_clients_that_misbehave_do_not_hold_up_the_work(here: Place, flooded: Service) -> None:
    ids = [here.submit("append_thread", fresh()) for _ in range(20)]
    for _ in range(20):
        with contextlib.suppress(OSError):
            say(sock(here.folder), b"A" * 100_000)
    assert {one.status for one in here.settled(*ids)} == {Status.CONFIRMED}
    flooded.stop()


def test_without_the_extra_the_worker_says_so_in_one_line(terminal: Terminal, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setenv("SETTLED_METRICS__TEXTFILE", str(terminal.folder / "x.prom"))
    ended = terminal("worker", "run", "--app", terminal.reference)
    assert ended.code == 78
    assert "metrics.textfile needs prometheus-client" in ended.err and "settled[metrics]" in ended.err
    assert "Traceback" not in ended.err


# ------------------------------------------------------------------ counting by hand


def test_contracts_beyond_the_limit_are_counted_together(app_of_hand: Hand) -> None:
    labels = Contracts(["b", "a"], 3)
    assert [labels.label(name) for name in ("a", "b", "c", "d", "e", "c")] == ["a", "b", "c", "other", "other", "c"]
    assert Contracts(["b", "a", "c"], 2).label("c") == "other"


def test_ends_times_kills_and_lost_leases_are_counted(app_of_hand: Hand) -> None:
    worker, clock = app_of_hand, app_of_hand.clock
    counting = Counting(Contracts(["pay"], 1))
    submit(worker.app, 1, 2)
    first, second = worker.step().jobs
    counting.started([first, second])
    clock.advance(0.3)
    counting.ended([returned(first, clock.now()), timed_out(second, clock.now(), fence=FenceBasis.PROCESS_KILLED)])
    late = timed_out(second, Moment(0, 0, ""), late=True)
    counting.ended([late])
    worker.step(returned(first, clock.now()), timed_out(second, clock.now()))
    for one in worker.heard.all:
        counting.moved(one.row, one.events)
    found = samples(Exposition(counting, dict).text().decode())
    assert found["settled_attempts_ended_total", ("pay", "timed_out")] == 1
    assert found["settled_runners_killed_total", ("pay",)] == 1
    assert found["settled_handler_seconds_sum", ("pay",)] == pytest.approx(0.6)
    assert found["settled_handler_seconds_bucket", ("pay", "0.25")] == 0
    assert found["settled_handler_seconds_bucket", ("pay", "0.5")] == 2
    assert found["settled_outcomes_total", ("pay", "quarantined")] == 1
    assert tuple(sorted(BUCKETS)) == BUCKETS


def test_a_lost_lease_is_counted_by_the_sweep_that_finds_it(app_of_hand: Hand, hand: Any) -> None:
    counting = Counting(Contracts(["pay"], 1))
    submit(app_of_hand.app, 1)
    app_of_hand.start()
    entered(app_of_hand)
    dies(app_of_hand)
    other = hand(app=app_of_hand.app)
    other.sweeper.heard = counting.moved
    other.sweep("leases")
    assert samples(Exposition(counting, dict).text().decode())["settled_leases_lost_total", ("pay",)] == 1


def test_a_name_that_no_label_may_hold_makes_no_broken_text() -> None:
    counting = Counting(Contracts([], 5))
    hostile = 'a"b\\c\n# HELP x\n\x1b[31m' + "z" * 1000
    text = Exposition(counting, lambda: {"settled_operations": {(hostile, "prepared"): 1.0}}).text().decode()
    ((_, (shown, _)),) = samples(text)
    assert len(shown) <= 200 and "\n" not in shown and "\x1b" not in shown


@pytest.fixture
def app_of_hand(app_at_hand: Any, hand: Any) -> Hand:
    declare(app_at_hand)
    made: Hand = hand(app=app_at_hand)
    return made


@pytest.fixture
def app_at_hand(tmp_path: Path, clock: Any) -> Iterator[Any]:
    made = make_app(tmp_path, clock, name="hand.db")
    yield made
    made.close()


# ------------------------------------------------------------------ documents and alerts


def test_every_name_follows_the_conventions() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"settled_[a-z_]+", name) and metric.says.endswith(".")
        assert name.endswith("_total") == (metric.kind == "counter")
        assert set(metric.labels) <= {"contract", "status", "end", "sweep", "channel", "scope", "file", "version"}


def test_the_page_lists_every_metric_as_the_code_has_it() -> None:
    page = (ROOT / "docs/operate/monitoring.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(settled_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", page, re.MULTILINE)
    coded = [(name, one.kind, ", ".join(f"`{label}`" for label in one.labels) or "–", one.says) for name, one in METRICS.items()]
    assert listed == coded


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_every_alert_uses_what_is_exported_and_names_an_entry_of_the_runbook() -> None:
    page = (ROOT / "docs/operate/runbook.md").read_text(encoding="utf-8")
    anchors = {head.lower().replace(",", "").replace(" ", "-") for head in re.findall(r"^## (.+)$", page, re.MULTILINE)}
    exported = {*METRICS, *(f"{name}_{part}" for name in METRICS for part in ("bucket", "sum", "count"))}
    for rule in alerts():
        used = set(re.findall(r"\bsettled_\w+", rule["expr"]))
        assert used and used <= exported, used - exported
        labels = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', rule["expr"]))
        assert labels <= {label for name in used for label in METRICS[name].labels}, rule
        assert rule["annotations"]["runbook"].partition("#")[2] in anchors, rule
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
    assert len(alerts()) == len({rule["alert"] for rule in alerts()}) >= 8


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus) is installed: the rules were only parsed")
def test_promtool_accepts_the_rules() -> None:
    command = ["promtool", "check", "rules", str(ROOT / "deploy/prometheus/alerts.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_comes_from_the_ledger_is_the_same_for_each_worker() -> None:
    assert not {name for name in LEDGER if name.endswith("_total")}
