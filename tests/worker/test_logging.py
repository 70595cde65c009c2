"""What a real worker logs: events with fields, no payload; and whatever happens to the log, the work goes on."""

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from settled import App, Status, logs
from settled_worker.journal import LogJournal
from tests.worker.harness import Hand, declare, returned, submit, timed_out
from tests.worker.services import APPS, QUICK, Place, fresh

MARKER = "m4rk3r-of-an-argument"


@pytest.mark.promise("S79")
def test_two_hundred_confirmed_are_one_line_at_info_and_two_hundred_at_debug(hand: Any, app: App) -> None:
    before, stream = logs._output, io.StringIO()
    declare(app)
    worker: Hand = hand(slots=300)
    worker.pump.journal = LogJournal()
    ids = submit(app, *range(201))
    *good, bad = worker.step().jobs
    logs.configure_logs("json", "debug", stream)
    try:
        now = app.shell.clock.now()
        worker.step(*(returned(job, now, output=MARKER) for job in good), timed_out(bad, now))
    finally:
        logs._output = before
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (batch,) = [line for line in lines if line["event"] == "worker.recorded"]
    assert (batch["confirmed"], batch["other"], batch["level"]) == (200, 1, "info")
    single = [line for line in lines if line["event"] == "operation.returned"]
    assert sorted(line["operation_id"] for line in single) == sorted(ids[:200]) and {line["level"] for line in single} == {"debug"}
    others = [line for line in lines if line["event"].startswith("operation.") and line not in single]
    assert {line["operation_id"] for line in others} == {ids[200]} and {line["level"] for line in others} <= {"info", "warning", "error"}
    assert all({"operation_id", "attempt", "contract", "status"} <= line.keys() for line in [*single, *others])
    assert MARKER not in stream.getvalue()


@pytest.mark.promise("S79", part="the log of a real worker names what it did by fields, and holds no argument")
def test_a_batch_is_one_line_and_whatever_is_not_confirmed_has_its_own_without_any_payload(here: Place) -> None:
    ids = [here.submit("append_thread", fresh(), note=MARKER) for _ in range(200)]
    lost = here.submit("lose_thread", reference := f"r-{MARKER}", note=MARKER)
    worker = here.worker(settings={"SETTLED_WORKER__SLOTS": "4"})
    here.settled(*ids)
    here.becomes(lost, Status.OUTCOME_UNKNOWN, Status.QUARANTINED, Status.CONFIRMED)
    worker.stop()
    recorded = worker.told("worker.recorded")
    single = [line for line in worker.told("operation.returned") if line["contract"] == "append_thread"]
    assert sum(line["confirmed"] for line in recorded) >= 200 > len(recorded) and {line["level"] for line in recorded} == {"info"}
    assert Counter(line["operation_id"] for line in single) == Counter(ids)
    assert {line["level"] for line in single} == {"debug"}
    (raised,) = worker.told("operation.raised")
    assert (raised["operation_id"], raised["attempt"], raised["contract"], raised["level"]) == (lost, 1, "lose_thread", "warning")
    assert raised["error"].startswith("ConnectionResetError") and raised["status"] == "outcome_unknown"
    text = worker.log.read_text().replace(lost, "")
    assert MARKER not in text and reference not in text


def start(here: Place, **streams: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "settled_cli.main", "worker", "run", "--app", "effects:app"]
    return subprocess.Popen(command, cwd=APPS, env={**here.environ, **QUICK}, stdin=subprocess.DEVNULL, **streams)


@pytest.mark.promise("S79", part="a log that breaks never reaches the work of a real worker")
@pytest.mark.parametrize("how", ["closed", "full", "unread", "encoding"])
def test_a_worker_works_whatever_happens_to_its_log(here: Place, how: str, tmp_path: Path) -> None:
    ids = [here.submit("append_thread", f"{fresh()}-☃") for _ in range(10)]
    ids.append(here.submit("lose_thread", fresh()))
    reader, writer = os.pipe()
    with Path("/dev/full").open("wb") as full:
        streams: dict[str, Any] = {
            "closed": {"preexec_fn": lambda: (os.close(1), os.close(2))},
            "full": {"stdout": full, "stderr": full},
            "unread": {"stdout": writer, "stderr": full},
            "encoding": {"stdout": writer, "stderr": writer},
        }[how]
        if how == "encoding":
            here.environ.update(PYTHONIOENCODING="ascii:strict", LC_ALL="C", PYTHONUTF8="0", SETTLED_LOGS__FORMAT="console")
        worker = start(here, **streams)
    os.close(writer)
    if how == "unread":
        os.close(reader)  # EPIPE from the first line on
    try:
        here.settled(*ids[:10])
        here.becomes(ids[10], Status.OUTCOME_UNKNOWN, Status.QUARANTINED, Status.CONFIRMED)
        worker.send_signal(signal.SIGTERM)
        if how == "encoding":
            said = b"".join(iter(lambda: os.read(reader, 65_536), b""))
            assert b"worker.started" in said and b"Traceback" not in said
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        if how != "unread":
            os.close(reader)
