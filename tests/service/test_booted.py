"""The service under a real systemd that was booted for it: one boot, one check for each test, in the order of an operator's week."""

import json
import re
from typing import Any

import pytest

from tests.conftest import eventually
from tests.service.booted import MAIN, ROOT, Ended, Machine

LEDGER = "/var/lib/settled/main/settled.db"
ALERT = "settled-alert@settled@main.service.service"

pytestmark = [pytest.mark.xdist_group("booted"), pytest.mark.timeout(240)]


def settled(machine: Machine, *arguments: str, user: str = "agent", ledger: str = LEDGER) -> Ended:
    return machine.run("settled", "--database", ledger, *arguments, user=user)


def shown(machine: Machine, operation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(settled(machine, "-o", "json", "op", "show", operation_id))
    return found


def submit(machine: Machine, contract: str, number: str, **arguments: Any) -> str:
    given = json.dumps({"n": number, **arguments})
    ended = settled(machine, "submit", contract, "--args", given, "--operation-id", f"{contract}:{number}")
    assert ended.code == 0, ended
    return f"{contract}:{number}"


def drop_in(machine: Machine, text: str, unit: str = MAIN) -> None:
    """Replace the test's drop-in of a unit."""
    machine.write(f"/etc/systemd/system/{unit}.d/test.conf", f"[Service]\n{text}")
    machine.must("systemctl", "daemon-reload")


def commands_of_the_page() -> list[str]:
    """Return the three commands of docs/operate/install.md, as they stand there."""
    text = (ROOT / "docs/operate/install.md").read_text()
    block = re.search(r"<!-- three commands -->\n+```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1].strip().splitlines()


@pytest.mark.promise("S72", part="install, and the service manager's own check")
def test_three_commands_lead_to_a_running_service(machine: Machine) -> None:
    commands = commands_of_the_page()
    assert len(commands) == 3
    for command in commands:
        ended = machine.shell(command)
        assert ended.code == 0, f"{command}\n{ended}\n{machine.journal(MAIN)}"
    assert machine.property(MAIN, "ActiveState") == "active"
    machine.must("usermod", "-aG", "settled", "agent")


@pytest.mark.promise("S59", part="start returns at READY, STATUS with counts")
def test_the_status_shows_what_runs_and_waits(machine: Machine) -> None:
    assert machine.property(MAIN, "StatusText").startswith("0 running, 0 waiting, 0 unknown")


def test_an_agent_of_the_group_submits_and_the_sandboxed_worker_does_it(machine: Machine) -> None:
    one = submit(machine, "note", "1")
    assert settled(machine, "op", "wait", one, "--timeout", "20").code == 0, machine.journal(MAIN)
    output = shown(machine, one)["output"]
    uid = int(machine.must("id", "-u", "settled"))
    assert (output["uid"], output["secret"], output["usr"], output["home"]) == (uid, 12, "Read-only file system", ["Permission denied"])
    assert len(output["boot_id"]) == 36


def test_the_group_may_use_the_ledger_and_nobody_else_may_read_it(machine: Machine) -> None:
    stat = f"stat -c '%n %a %U:%G' {LEDGER}* /var/lib/settled/main /etc/settled/main.toml"
    modes = dict(line.split(" ", 1) for line in machine.must("sh", "-c", stat).splitlines())
    assert modes[LEDGER] == "660 settled:settled"
    assert modes[f"{LEDGER}-wal"].startswith("660 ") and modes[f"{LEDGER}-wal"].endswith(":settled")
    assert modes[f"{LEDGER}.run"] == "2770 settled:settled"
    assert modes["/var/lib/settled/main"] == "2770 settled:settled"
    assert modes["/etc/settled/main.toml"] == "400 settled:root"
    stranger = settled(machine, "status", user="stranger")
    assert stranger.code == 78 and "cannot be reached by this user" in stranger
    assert machine.run("cat", LEDGER, user="stranger").code == 1
    assert machine.run("cat", "/etc/settled/main.toml", user="agent").code == 1


def test_the_agents_bell_wakes_the_worker(machine: Machine) -> None:
    bells = machine.must("sh", "-c", f"stat -c '%a %G' {LEDGER}.run/*.bell").split()
    assert bells == ["660", "settled"]


@pytest.mark.promise("S72", part="exposure")
def test_the_service_manager_finds_no_fault_with_the_units(machine: Machine) -> None:
    ended = machine.run("systemd-analyze", "verify", "--man=no", MAIN, "settled-sweep@main.timer", ALERT)
    assert ended.code == 0 and not ended.strip(), ended
    assert machine.run("systemd-analyze", "security", "--threshold=20", "--no-pager", MAIN).code == 0


@pytest.mark.promise("S70", part="doctor beside a running unit")
def test_doctor_finds_nothing_wrong_beside_the_running_unit(machine: Machine) -> None:
    ended = machine.run("settled", "--config", "/etc/settled/main.toml", "-o", "json", "doctor", user="settled")
    assert ended.code == 0, ended
    found = {one["check"]: one for one in json.loads(ended)}
    assert found["unit"]["found"].startswith("settled@main.service is active")


@pytest.mark.promise("S59", part="systemctl reload: a bad file is refused, a good one taken over")
def test_a_reload_refuses_a_bad_file_and_takes_a_good_one(machine: Machine) -> None:
    good = machine.must("cat", "/etc/settled/main.toml")
    machine.write("/etc/settled/main.toml", good + "[worker]\ndrain_seconds = 'soon'\n")
    machine.must("systemctl", "reload", MAIN)
    eventually(lambda: machine.property(MAIN, "StatusText").startswith("reload refused"), seconds=20)
    machine.write("/etc/settled/main.toml", good + "[worker]\ndrain_seconds = 60\n")
    machine.must("systemctl", "reload", MAIN)
    eventually(lambda: "worker.drain_seconds" in machine.journal(MAIN).rpartition("worker.reloaded")[2], seconds=20)
    assert machine.property(MAIN, "ActiveState") == "active"


@pytest.mark.promise("S59", part="a worker that hangs is killed by the watchdog and restarted")
@pytest.mark.promise("S55", part="a stopped worker is killed by the service manager")
def test_a_worker_that_stands_still_is_killed_and_started_again(machine: Machine) -> None:
    drop_in(machine, "WatchdogSec=3\n")
    machine.must("systemctl", "restart", MAIN)
    machine.must("systemctl", "kill", "-s", "STOP", "--kill-whom=main", MAIN)
    eventually(lambda: machine.property(MAIN, "NRestarts") == "1", seconds=60, pause_seconds=0.2)
    eventually(lambda: machine.property(MAIN, "ActiveState") == "active", seconds=60, pause_seconds=0.2)
    assert "watchdog" in machine.journal(MAIN).lower()


EXECUTE = """
from shop import app, here
print(app.execute(here, {"n": "1", "seconds": 0}).status, flush=True)
app.execute(here, {"n": "2", "seconds": 200})
"""


def test_an_agent_executes_by_itself_and_when_it_is_killed_the_worker_finds_it(machine: Machine) -> None:
    machine.write("/opt/shop/execute.py", EXECUTE)
    start = f"SETTLED_DATABASE={LEDGER} nohup /opt/settled/bin/python /opt/shop/execute.py >/home/agent/log 2>&1 & echo $!"
    pid = machine.shell(start, user="agent").strip()
    second = ("settled", "--database", LEDGER, "op", "show", "here:2")
    eventually(lambda: "dispatched" in machine.run(*second, user="agent"), seconds=40, pause_seconds=0.2)
    assert machine.must("cat", "/home/agent/log").strip() == "confirmed"
    locks = machine.must("sh", "-c", f"stat -c '%a %U:%G' {LEDGER}.run/*.lock").splitlines()
    assert "660 agent:settled" in locks
    machine.must("kill", "-9", pid)
    eventually(lambda: shown(machine, "here:2")["status"] == "quarantined", seconds=40, pause_seconds=0.2)
    assert (shown(machine, "here:2")["outcome"], shown(machine, "here:2")["attempts"]) == ("UNKNOWN", 1)


LOOK = """
import sys
from settled.execution.incarnation import marked_processes
print(marked_processes("0" * 20, uid=int(sys.argv[1])))
"""


@pytest.mark.promise("S93", part="under ProtectProc=invisible the processes of another user cannot be shown to be gone")
def test_behind_a_hidden_process_list_nobody_of_another_user_is_called_gone(machine: Machine) -> None:
    machine.write("/opt/shop/look.py", LOOK)
    agent, own = machine.must("id", "-u", "agent").strip(), machine.must("id", "-u", "settled").strip()
    look = ["systemd-run", "-q", "--pipe", "--wait", "-p", "User=settled", "-p", "ProtectProc=invisible", "/opt/settled/bin/python"]
    assert machine.must(*look, "/opt/shop/look.py", agent).strip() == "None"
    assert machine.must(*look, "/opt/shop/look.py", own).strip() == "[]"


def napping(machine: Machine, number: str, seconds: float) -> str:
    one = submit(machine, "nap", number, seconds=seconds)
    eventually(lambda: machine.run("test", "-e", f"/run/settled/main/napping-{number}").code == 0, seconds=40, pause_seconds=0.1)
    return one


def test_after_a_kill_the_worker_is_started_again_and_the_outcome_is_honestly_unknown(machine: Machine) -> None:
    one = napping(machine, "killed", 60)
    machine.must("systemctl", "kill", "-s", "KILL", "--kill-whom=main", MAIN)
    eventually(lambda: machine.property(MAIN, "ActiveState") == "active" and machine.property(MAIN, "SubState") == "running", seconds=60)
    eventually(lambda: shown(machine, one)["status"] == "quarantined", seconds=60, pause_seconds=0.5)
    assert (shown(machine, one)["outcome"], shown(machine, one)["attempts"]) == ("UNKNOWN", 1)
    assert machine.run("pgrep", "-f", "settled.execution.runner").code in (0, 1)


@pytest.mark.promise("S57", part="under a service manager whose limit is shorter than the drain")
def test_a_stop_waits_for_a_handler_beyond_the_units_limit_and_records_it(machine: Machine) -> None:
    drop_in(machine, "TimeoutStopSec=3\n")
    machine.must("systemctl", "restart", MAIN)
    one = napping(machine, "drained", 6)
    machine.must("systemctl", "stop", MAIN)
    assert (machine.property(MAIN, "Result"), machine.property(MAIN, "ExecMainStatus")) == ("success", "0")
    found = shown(machine, one)
    assert (found["status"], found["attempts"]) == ("confirmed", 1)


def test_a_stop_ends_what_takes_longer_than_the_drain_and_says_that_nobody_knows(machine: Machine) -> None:
    settings = machine.must("cat", "/etc/settled/main.toml")
    machine.write("/etc/settled/main.toml", settings.replace("drain_seconds = 60", "drain_seconds = 1"))
    machine.must("systemctl", "start", MAIN)
    one = napping(machine, "cut", 200)
    machine.must("systemctl", "stop", MAIN)
    assert machine.property(MAIN, "Result") == "success"
    found = shown(machine, one)
    assert (found["outcome"], found["attempts"]) == ("UNKNOWN", 1)
    assert machine.run("pgrep", "-f", "settled.execution").code == 1  # nothing is left of it


@pytest.mark.promise("S54", part="a timer runs the sweeps without a worker")
def test_a_timer_sweeps_without_a_worker(machine: Machine) -> None:
    machine.must("systemctl", "start", "settled-sweep@main.timer")
    eventually(lambda: machine.property("settled-sweep@main.service", "ExecMainExitTimestampMonotonic") not in ("", "0"), seconds=60)
    assert machine.property("settled-sweep@main.service", "Result") == "success", machine.journal("settled-sweep@main.service")
    eventually(lambda: shown(machine, "nap:cut")["status"] == "quarantined", seconds=30)
    machine.must("systemctl", "stop", "settled-sweep@main.timer")


@pytest.mark.promise("S59", part="configuration error: exit 78, no restart, somebody is told once")
def test_a_wrong_configuration_ends_with_78_and_is_not_tried_again(machine: Machine) -> None:
    settings = machine.must("cat", "/etc/settled/main.toml")
    machine.write("/etc/settled/main.toml", settings + "[wroker]\n")
    assert machine.run("systemctl", "start", MAIN).code != 0
    assert (machine.property(MAIN, "ExecMainStatus"), machine.property(MAIN, "NRestarts")) == ("78", "0")
    assert "did you mean worker?" in machine.run("systemctl", "status", "--no-pager", MAIN)
    eventually(lambda: machine.journal(ALERT).count(f"{MAIN} has failed") == 1, seconds=20)
    doctor = machine.run("settled", "--database", LEDGER, "doctor")
    assert "Traceback" not in doctor
    machine.write("/etc/settled/main.toml", settings)
    machine.must("systemctl", "reset-failed", MAIN)


@pytest.mark.promise("S59", part="a crash loop ends, and somebody is told once")
def test_a_crash_loop_ends_and_somebody_is_told_once(machine: Machine) -> None:
    before = machine.journal(ALERT).count(f"{MAIN} has failed")
    machine.write("/etc/settled/alert", '#!/bin/sh\necho "told about $1"\n', 0o755)
    drop_in(machine, "ExecStart=\nExecStart=/bin/false\nRestartSec=100ms\n")
    machine.run("systemctl", "start", MAIN)
    eventually(lambda: machine.property(MAIN, "ActiveState") == "failed", seconds=30)
    eventually(lambda: machine.journal(ALERT).count(f"{MAIN} has failed") == before + 1, seconds=20)
    eventually(lambda: machine.journal(ALERT).count(f"told about {MAIN}") == 1)
    drop_in(machine, "")
    machine.must("systemctl", "reset-failed", MAIN)
