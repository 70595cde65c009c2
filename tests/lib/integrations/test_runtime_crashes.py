"""Kill the process of a run at each of its writes, before and after, and resume it in another: one effect, one end.

One program imports everything once and forks a child for each point; the children die by SIGKILL like any other process.
"""

from pathlib import Path

import pytest

from tests.lib.apps.bench import Bench, spawn

PROGRAM = """
import os, sys
import running
from settled.integrations.runbook import Runbook
from settled.integrations.tools import Tool

outbox, app = running.outbox, running.app

def dying(function, number, when):
    count = 0
    def wrapped(*args, **named):
        nonlocal count
        count += 1
        if (count, when) == (number, "before"):
            os.kill(os.getpid(), 9)
        value = function(*args, **named)
        if (count, when) == (number, "after"):
            os.kill(os.getpid(), 9)
        return value
    return wrapped

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print("error", type(error).__name__, error, flush=True)
            os._exit(1)
        app.close()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

POINTS = [(owner, name, number, when)
    for owner, name, most in ((Runbook, "open", 1), (Runbook, "record", 3), (Tool, "call", 1)) for number in range(1, most + 1)
    for when in ("before", "after")]

for owner, name, number, when in POINTS:
    run_id = f"{owner.__name__}.{name}-{number}-{when}"
    order = str(1000 + POINTS.index((owner, name, number, when)))
    def start():
        setattr(owner, name, dying(getattr(owner, name), number, when))
        running.agent(order).start(run_id, "refund")
    def resume():
        got = running.agent(order).start(run_id, "refund")
        for _ in range(50):
            if got.state == "waiting":
                got = running.agent(order).resume(run_id)
        print(run_id, got.state, outbox.read_text().split().count(order), len(got.steps), flush=True)
    died = child(start)
    resumed = child(resume)
    print(run_id, "exits", died, resumed, flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.promise("P76", part="killed before and after each write of a run, and resumed")
def test_a_run_that_is_killed_at_any_of_its_writes_is_resumed_to_one_effect(tmp_path: Path) -> None:
    for bench in Bench.opened(tmp_path):
        program = spawn(PROGRAM, database=bench.app.ledger.path, extra={"RUNNING_OUTBOX": str(tmp_path / "outbox.txt")})
        out, err = program.communicate(timeout=280)
        assert program.returncode == 0, err
        said = out.splitlines()
        ends = {line.split()[0]: line.split()[1:] for line in said if "exits" not in line}
        exits = {line.split()[0]: line.split()[2:] for line in said if "exits" in line}
        assert len(exits) == 10
        assert all(one == ["-9", "0"] for one in exits.values()), said
        assert ends == {name: ["completed", "1", "1"] for name in exits}, said
        assert {op.status for op in bench.app.list()} == {"confirmed"}
