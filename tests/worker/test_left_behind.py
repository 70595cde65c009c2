"""A worker that leaves code of a handler behind holds its lock until that code can send no more."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from settled import App, Status
from tests.conftest import eventually

POOLED = '''
import os, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from settled import App, ProbeResult

app, here, pool = App("settled.db"), Path("."), ThreadPoolExecutor(1)

def send():
    (here / "entered").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    with open("effects", "a") as file:
        file.write("sent\\n")

@app.effect(name="pooled", operation_id=lambda a: "pooled:1", isolation="thread", timeout=1, network_drain=0)
def pooled(arguments):
    pool.submit(send).result()

@pooled.probe
def look(arguments):
    sent = (here / "effects").exists()
    return ProbeResult.committed() if sent else ProbeResult.not_committed(terminal=True, healthy=True)
'''


@pytest.mark.promise("S92", part="a stopped worker is not taken for gone while threads of a handler live in it")
def test_a_worker_that_leaves_a_thread_of_a_handler_ends_it_before_its_lock_is_free(tmp_path: Path) -> None:
    (tmp_path / "pooled.py").write_text(POOLED)
    app = App(tmp_path / "settled.db")
    app.create_database()
    app.submit("pooled", {}, operation_id="pooled:1")
    command = [sys.executable, "-m", "settled_cli.main", "worker", "run", "--app", "pooled:app"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        eventually(lambda: app.get("pooled:1").status is Status.OUTCOME_UNKNOWN, seconds=30)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0  # a pool thread that never ends does not keep it
    finally:
        worker.kill()
    (tmp_path / "go").touch()

    def confirmed() -> bool:
        subprocess.run([*command, "--once"], cwd=tmp_path, capture_output=True, timeout=60, check=True)
        return app.get("pooled:1").status is Status.CONFIRMED

    eventually(confirmed, seconds=30)
    op = app.get("pooled:1")
    assert (tmp_path / "effects").read_text() == "sent\n"
    assert op.attempt_records[0]["fence"] == "process_gone"
    app.close()
