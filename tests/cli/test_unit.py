"""`settled unit`: the files of the service, checked by the service manager's own tools where they are installed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from settled_cli.unit_files import render, state_of
from settled_cli.unit_state import judge, unit_of
from tests.cli.conftest import Terminal
from tests.cli.terminal import ROOT

ANALYZE = shutil.which("systemd-analyze")
analyzed = pytest.mark.skipif(ANALYZE is None, reason="NOT SHOWN HERE: systemd-analyze is not installed (Debian: systemd)")


def installed(terminal: Terminal, *more: str) -> Path:
    root = terminal.folder / "root"
    ended = terminal("unit", "install", "--root", str(root), "--settled", "/opt/settled/bin/settled", *more)
    assert ended.code == 0, ended
    return root


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted((root / "etc").rglob("*")) if path.is_file()}


def test_what_deploy_holds_is_what_the_command_installs(terminal: Terminal) -> None:
    """Where it is not: settled unit install --root deploy --settled /opt/settled/bin/settled --force"""
    assert files(ROOT / "deploy") == files(installed(terminal))


@pytest.mark.promise("S72", part="the unit's protocol, watchdog, exit status and command")
def test_the_unit_is_printed_and_nothing_is_written(terminal: Terminal) -> None:
    ended = terminal("unit", "print", "--settled", "/opt/settled/bin/settled")
    lines = ended.out.splitlines()
    for line in (
        "Type=notify",
        "WatchdogSec=30",
        "RestartPreventExitStatus=78",
        "ExecStart=/opt/settled/bin/settled --config /etc/settled/%i.toml worker run",
        "User=settled",
        "WorkingDirectory=/",
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith(("ProcSubset=", "ProtectProc=", "ProtectControlGroups="))]
    assert list(terminal.folder.iterdir()) == []
    assert "Group=agents" in terminal("unit", "print", "--group", "agents").out.splitlines()
    assert terminal("unit", "print", "--user", "settled-sweep@.timer").code == 2


def test_an_older_file_of_ours_is_replaced_and_an_edited_one_is_not(terminal: Terminal) -> None:
    root = installed(terminal, "--group", "agents")
    unit = root / "etc/systemd/system/settled@.service"
    installed(terminal)
    assert "Group=settled" in unit.read_text()
    before = files(root)
    unit.write_text(unit.read_text() + "# mine\n")
    edited = files(root)
    ended = terminal("unit", "install", "--root", str(root), "--settled", "/elsewhere/settled")
    assert ended.code == 4 and str(unit) in ended.err and "Nothing was written" in ended.err
    assert files(root) == edited
    installed(terminal, "--force")
    assert files(root) == before
    (made,) = [one for one in render(settled="/x", user="u", group="g", for_user=False) if one.name == "sysusers.conf"]
    assert state_of(root / made.place, made.text) == "ours"


def test_the_settings_of_an_instance_are_written_once_and_hold_what_was_said(terminal: Terminal) -> None:
    root = installed(terminal, "main", "--app", "shop.effects:app")
    settings = root / "etc/settled/main.toml"
    assert 'app = "shop.effects:app"' in settings.read_text() and settings.stat().st_mode & 0o777 == 0o600
    shown = terminal("--config", str(settings), "config", "validate")
    assert shown.code == 0 and "/var/lib/settled/main/settled.db" in shown.out
    settings.write_text("# mine\n")
    installed(terminal, "main", "--app", "other:app")
    assert settings.read_text() == "# mine\n"


@pytest.mark.parametrize("arguments", [["../x"], ["a b"], ["-x"], [""], ["x" * 65], ["--app", "shop:app"], ["main", "--app", "no colon"]])
def test_names_that_no_unit_could_bear_are_wrong_usage(terminal: Terminal, arguments: list[str]) -> None:
    assert terminal("unit", "install", "--root", str(terminal.folder / "root"), "--settled", "/x", *arguments).code == 2
    assert not (terminal.folder / "root").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--run-as", ""), ("--run-as", " "), ("--run-as", "0"), ("--run-as", "a b"), ("--run-as", "a\nExecStartPre=/bin/id"),
        ("--run-as", "%i"), ("--run-as", "-a"), ("--run-as", "x" * 32), ("--run-as", "john.doe"), ("--group", ""), ("--group", "0"),
        ("--group", "a:b"), ("--group", "g\r"), ("--settled", ""), ("--settled", "settled"), ("--settled", "/"),
        ("--settled", "/opt/my apps/settled"), ("--settled", "/opt/%n/settled"), ("--settled", "/opt/$HOME/settled"),
        ("--settled", "/opt/'x/settled"), ("--settled", "/x\nUser=root"),
    ],
)  # fmt: skip
def test_a_value_that_would_mean_something_else_in_a_unit_is_wrong_usage(terminal: Terminal, option: str, value: str) -> None:
    """An empty User= is root."""
    given = {"--settled": "/x", option: value}
    words = [word for pair in given.items() for word in pair]
    for command in (("print",), ("print", "--user"), ("install", "--root", "root")):
        ended = terminal("unit", *command, *words)
        assert (ended.code, ended.out, option in ended.err, len(ended.err.splitlines())) == (2, "", True, 1), ended
    assert list(terminal.folder.iterdir()) == []


@pytest.mark.parametrize(("user", "group", "settled"), [("", "g", "/x"), ("u", "", "/x"), ("u", "g", "")])
def test_no_unit_is_rendered_without_a_user_a_group_or_a_command(user: str, group: str, settled: str) -> None:
    with pytest.raises(click.UsageError, match="Nothing was written"):
        render(settled=settled, user=user, group=group, for_user=False)


def test_names_that_systemd_takes_are_taken(terminal: Terminal) -> None:
    lines = terminal("unit", "print", "--run-as", "_x-9", "--group", "domain.users", "--settled", "/opt//s@1/bin/settled").out.splitlines()
    assert {"User=_x-9", "Group=domain.users"} <= set(lines) and any(one.startswith("ExecStart=/opt//s@1/bin/settled ") for one in lines)


@pytest.mark.parametrize("broken", ["the root", "a folder", "a unit"])
def test_a_place_that_cannot_be_written_is_wrong_usage_and_leaves_no_part_of_a_file(terminal: Terminal, broken: str) -> None:
    root = terminal.folder / "root"
    if broken == "the root":
        root.write_text("mine")
    elif broken == "a folder":
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "systemd").write_text("mine")
    else:
        (root / "etc/systemd/system/settled-sweep@.timer").mkdir(parents=True)
    ended = terminal("unit", "install", "--root", str(root), "--settled", "/x")
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1) and "root" in ended.err, ended
    assert [path for path in terminal.folder.rglob("*") if path.is_file()] == {
        "the root": [root], "a folder": [root / "etc" / "systemd"], "a unit": []
    }[broken]  # fmt: skip


@analyzed
@pytest.mark.promise("S72", part="the service manager's own check, and an exposure of at most 2.0")
def test_the_units_pass_the_service_managers_own_checks(terminal: Terminal) -> None:
    assert ANALYZE is not None
    root = terminal.folder / "checked"
    command = shutil.which("true")
    assert terminal("unit", "install", "--root", str(root), "--settled", str(command), "--run-as", "daemon").code == 0
    folder = root / "etc/systemd/system"
    units = sorted(str(path) for path in folder.iterdir())
    verified = subprocess.run([ANALYZE, "verify", "--man=no", "--recursive-errors=no", *units], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    for name in ("settled@.service", "settled-sweep@.service"):
        checked = [ANALYZE, "security", "--offline=true", "--no-pager"]
        assert subprocess.run([*checked, "--threshold=20", str(folder / name)], capture_output=True, check=False).returncode == 0
        assert subprocess.run([*checked, "--threshold=5", str(folder / name)], capture_output=True, check=False).returncode != 0


LOADED = {"LoadState": "loaded", "NeedDaemonReload": "no", "UnitFileState": "enabled", "NRestarts": "0", "StatusText": "0 running"}


@pytest.mark.promise("S70", part="doctor judges the unit and says what to do")
@pytest.mark.parametrize(
    ("told", "verdict", "says"),
    [
        ({"ActiveState": "active"}, "ok", "is active: 0 running"),
        ({"ActiveState": "active", "NRestarts": "3"}, "note", "restarted 3 times"),
        ({"ActiveState": "active", "UnitFileState": "disabled"}, "note", "systemctl enable u"),
        ({"ActiveState": "active", "NeedDaemonReload": "yes"}, "wrong", "systemctl daemon-reload"),
        ({"ActiveState": "inactive"}, "note", "systemctl enable --now u"),
        ({"LoadState": "not-found"}, "note", "settled unit install"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "78"}, "wrong", "mend what the journal names"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "243"}, "wrong", "credential"),
        ({"ActiveState": "failed", "Result": "watchdog", "ExecMainStatus": "6"}, "wrong", "watchdog: see the journal"),
    ],
)
def test_doctor_judges_what_the_service_manager_tells(told: dict[str, str], verdict: str, says: str) -> None:
    found = judge("u", "systemctl", LOADED | told)
    assert found.verdict == verdict and says in f"{found.found} {found.what_to_do}"


def test_the_unit_of_a_settings_file_is_known_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert unit_of(Path("/etc/settled/main.toml")) == ("settled@main.service", False)
    assert unit_of(tmp_path / "settled/mine.toml") == ("settled@mine.service", True)
    assert unit_of(tmp_path / "settled.toml") is None and unit_of(None) is None


@pytest.mark.promise("S70", part="doctor finds files that lock out those the ledger is shared with, and a folder that anybody may write to")
def test_doctor_finds_wrong_modes_beside_a_shared_ledger(terminal: Terminal) -> None:
    group = str(os.getgid())
    assert terminal("--database", "shared/settled.db", "init", "--group", group).code == 0

    def found() -> dict[str, dict[str, str]]:
        return {one["check"]: one for one in json.loads(terminal("--database", "shared/settled.db", "-o", "json", "doctor").out)}

    assert {one["verdict"] for one in found().values() if one["check"].startswith("mode of")} == {"ok"}
    (terminal.folder / "shared/settled.db.run").chmod(0o2750)
    assert "chgrp" in found()["mode of settled.db.run"]["what_to_do"]
    (terminal.folder / "shared").chmod(0o2777)
    assert found()["folder"]["verdict"] == "wrong"
    assert found()["synchronous"]["found"] == "full"
