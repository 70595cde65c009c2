"""What operators get wrong, under a real systemd: one clear line each, the right exit code, and no restart that cannot help."""

import json
from collections.abc import Iterator

import pytest

from tests.conftest import eventually
from tests.service.booted import Machine

pytestmark = [pytest.mark.xdist_group("booted"), pytest.mark.timeout(240)]

APP = 'app = "shop:app"\n'
MISTAKES: dict[str, tuple[str | None, str]] = {
    "mian": (None, "there is no settings file /etc/settled/mian.toml"),
    "noapp": ('database = "/var/lib/settled/good/settled.db"\n', "worker run needs your contracts"),
    "nomodule": ('app = "shoop:app"\n', "the app shoop:app cannot be imported: ModuleNotFoundError"),
    "raises": ('app = "broken:app"\n', "the app broken:app cannot be imported: ZeroDivisionError"),
    "noobject": ('app = "shop:application"\n', "the app shop:application cannot be imported: AttributeError"),
    "nocolon": ('app = "shop"\n', "but must be MODULE:APP"),
    "home": (APP + 'database = "/home/agent/settled.db"\n', "its unit hides home folders"),
    "noledger": (APP + 'database = "/var/lib/settled/noledger/settled.db"\n', "there is no ledger at /var/lib/settled/noledger/settled.db"),
    "unreadable": (APP + 'database = "/var/lib/settled/unreadable/settled.db"\n', "cannot be read by this user"),
    "noledgerfile": (APP + 'database = "/var/lib/settled/noledgerfile/settled.db"\n', "/var/lib/settled/noledgerfile/settled.db"),
    "misspelt": (APP + "[worker]\nslot = 3\n", "worker.slot is not a setting; did you mean slots?"),
    "nottoml": ("app = shop:app\n", "/etc/settled/nottoml.toml is not TOML"),
    "secret": (APP, "/etc/settled/secret.toml cannot be read: Permission denied"),
    "variable": (APP, "SETTLED_DATABSE is not a setting; did you mean SETTLED_DATABASE?"),
}


@pytest.fixture(scope="module")
def started(machine: Machine) -> Machine:
    """Every mistake made, and its unit started: all at once, because each only has to fail."""
    if machine.run("id", "settled").code != 0:
        machine.must("settled", "unit", "install")
    machine.write("/opt/shop/broken.py", "1 / 0\n")
    machine.must("mkdir", "-p", "/var/lib/settled/unreadable", "/var/lib/settled/noledgerfile")
    for path in ("unreadable", "noledgerfile"):
        machine.write(f"/var/lib/settled/{path}/settled.db", "no ledger\n", 0o600)
    machine.must("chown", "-R", "settled:settled", "/var/lib/settled/noledgerfile", "/var/lib/settled/unreadable")
    machine.must("chown", "root:root", "/var/lib/settled/unreadable/settled.db")
    for name, (settings, _) in MISTAKES.items():
        if settings is not None:
            machine.write(f"/etc/settled/{name}.toml", settings, 0o600 if name == "secret" else 0o644)
        misspelt = "SETTLED_DATABSE=/x\n" if name == "variable" else ""
        machine.write(f"/etc/settled/{name}.env", f"PYTHONPATH=/opt/shop\n{misspelt}")
    units = [f"settled@{name}.service" for name in MISTAKES]
    machine.must("systemctl", "start", "--no-block", *units)
    states = ["systemctl", "show", "-p", "ActiveState", "--value", *units]
    eventually(lambda: set(machine.run(*states).split()) == {"failed"}, seconds=120, pause_seconds=0.5)
    return machine


@pytest.mark.promise("S59", part="configuration errors: exit 78 and no restart loop")
@pytest.mark.promise("S69", part="78 under a service manager")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_in_one_line_and_not_tried_again(started: Machine, name: str) -> None:
    unit = f"settled@{name}.service"
    said = started.journal(unit)
    assert MISTAKES[name][1] in said
    assert (started.property(unit, "ExecMainStatus"), started.property(unit, "NRestarts")) == ("78", "0"), said
    assert "Traceback" not in said
    ours = [line for line in said.splitlines() if line.startswith("settled: ") and not line.startswith("settled: the ledger is ")]
    assert len(ours) == 1, said


@pytest.fixture
def small(machine: Machine) -> Iterator[Machine]:
    """A ledger of its own on a file system that is full."""
    machine.must("mkdir", "-p", "/var/lib/settled/full")
    machine.must("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", "/var/lib/settled/full")
    machine.must("chown", "settled:settled", "/var/lib/settled/full")
    machine.write("/etc/settled/full.toml", APP + 'database = "/var/lib/settled/full/settled.db"\n')
    machine.write("/etc/settled/full.env", "PYTHONPATH=/opt/shop\n")
    machine.must("settled", "--config", "/etc/settled/full.toml", "init", user="settled")
    machine.shell("cat /dev/zero > /var/lib/settled/full/filling")
    yield machine
    machine.run("systemctl", "stop", "settled@full")
    machine.run("umount", "-l", "/var/lib/settled/full")


def test_on_a_full_disk_the_service_waits_says_so_and_starts_when_there_is_room(small: Machine) -> None:
    unit = "settled@full.service"
    small.must("systemctl", "start", "--no-block", unit)
    eventually(lambda: small.property(unit, "StatusText").startswith("waiting for the store"), seconds=40, pause_seconds=0.2)
    assert small.property(unit, "ActiveState") == "activating"
    small.must("rm", "/var/lib/settled/full/filling")
    eventually(lambda: small.property(unit, "ActiveState") == "active", seconds=40, pause_seconds=0.2)


def test_a_group_that_does_not_exist_makes_no_ledger(machine: Machine) -> None:
    ended = machine.run("settled", "--database", "/var/lib/settled/nogroup/settled.db", "init", "--group", "setled")
    assert ended.code == 78 and "there is no group 'setled'" in ended
    assert machine.run("test", "-e", "/var/lib/settled/nogroup").code == 1


@pytest.mark.promise("S72", part="install never overwrites an edited file")
def test_an_edited_unit_is_not_overwritten(machine: Machine) -> None:
    path = "/etc/systemd/system/settled-sweep@.timer"
    machine.must("sed", "-i", "s/1min/5min/", path)
    ended = machine.run("settled", "unit", "install")
    assert ended.code == 4 and "was edited since it was installed. Nothing was written" in ended
    assert "5min" in machine.must("cat", path)
    answer = machine.must("sh", "-c", "settled -o json unit install --force 2>/dev/null")
    rows = {one["file"]: one["done"] for one in json.loads(answer)}
    assert rows[path] == "overwritten"
    assert machine.run("settled", "unit", "install", "ma/in").code == 2
    assert machine.run("settled", "unit", "install", "main", "--app", 'x"y').code == 2
    assert machine.run("settled", "unit", "install", user="agent").code == 4


@pytest.mark.promise("S72", part="a service of one user")
def test_a_service_of_one_user_is_installed_without_root(machine: Machine) -> None:
    uid = machine.must("id", "-u", "agent").strip()
    machine.must("systemctl", "start", f"user@{uid}.service")
    before = f"export XDG_RUNTIME_DIR=/run/user/{uid} HOME=/home/agent; set -e; "
    machine.write("/home/agent/.config/settled/mine.env", "PYTHONPATH=/opt/shop\n")
    machine.must("chown", "-R", "agent:agent", "/home/agent/.config")
    for command in (
        "settled unit install --user mine --app shop:app",
        "settled --config ~/.config/settled/mine.toml init",
        "systemctl --user enable --now settled@mine",
        "settled --config ~/.config/settled/mine.toml doctor",
    ):
        ended = machine.shell(before + command, user="agent")
        assert ended.code == 0, f"{command}\n{ended}\n{machine.shell(before + 'journalctl --user -u settled@mine', user='agent')}"
    assert machine.shell(before + "stat -c %a ~/.local/share/settled/mine/settled.db", user="agent").strip() == "600"
    assert "settled@mine.service is active" in ended
    machine.shell(before + "systemctl --user stop settled@mine", user="agent")
