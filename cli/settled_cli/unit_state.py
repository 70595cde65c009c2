"""Ask the service manager how the unit of this instance stands, and say what to do about it. Nothing is changed."""

import shutil
import subprocess
from pathlib import Path
from typing import Final, Literal, NamedTuple

from settled_cli.installing import home

_BOOTED: Final = Path("/run/systemd/system")
_SYSTEM: Final = Path("/etc/settled")
_SECONDS: Final = 10
_ASKED: Final = ("LoadState", "ActiveState", "Result", "ExecMainStatus", "NRestarts", "NeedDaemonReload", "UnitFileState", "StatusText")
_EXITS: Final = {
    "75": "the store was busy or unavailable: see the journal",
    "78": "configuration or schema: mend what the journal names; it is not tried again by itself",
    "203": "the command of the unit is not there or cannot be run: settled unit install",
    "216": "the group of the unit does not exist: systemd-sysusers",
    "217": "the user of the unit does not exist: systemd-sysusers",
    "226": "the sandbox cannot be set up: a path named in the unit is missing",
    "238": "the state directory cannot be made: another owner, or no space",
    "243": "a credential's file is missing or cannot be read",
}


class UnitState(NamedTuple):
    """What was found. `verdict` as in an examination."""

    verdict: Literal["ok", "note", "wrong"]
    found: str
    what_to_do: str = ""


def unit_of(config_file: Path | None) -> tuple[str, bool] | None:
    """Return the unit that runs with this settings file, and whether it is one of this user's manager; None for any other file."""
    if config_file is None or config_file.suffix != ".toml":
        return None
    folder, unit = config_file.absolute().parent, f"settled@{config_file.stem}.service"
    if folder == _SYSTEM:
        return unit, False
    return (unit, True) if folder == home("XDG_CONFIG_HOME", ".config") / "settled" else None


def unit_state(config_file: Path | None) -> UnitState:
    """Judge the unit that runs with this settings file."""
    named = unit_of(config_file)
    if named is None:
        return UnitState("note", "these settings are not those of a unit (/etc/settled/NAME.toml)")
    unit, for_user = named
    manager = ["systemctl", *(["--user"] if for_user else [])]
    if shutil.which("systemctl") is None or not _BOOTED.is_dir():
        return UnitState("note", "no systemd runs here")
    try:
        asked = [*manager, "show", unit, *(f"--property={name}" for name in _ASKED)]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return UnitState("note", f"{unit}: the service manager did not answer", f"{' '.join(manager)} status {unit}")
    told = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    return judge(unit, " ".join(manager), told)


def judge(unit: str, manager: str, told: dict[str, str]) -> UnitState:
    """Judge what a service manager told."""
    state, result, code = told.get("ActiveState", ""), told.get("Result", ""), told.get("ExecMainStatus", "")
    if told.get("LoadState") != "loaded":
        return UnitState("note", f"{unit} is not installed ({told.get('LoadState') or 'unknown'})", "settled unit install")
    if state == "failed":
        hint = _EXITS.get(code, "see the journal") if result == "exit-code" else f"{result}: see the journal"
        where = "journalctl --user" if "--user" in manager else "journalctl"
        return UnitState("wrong", f"{unit} has failed: {result}, exit status {code}", f"{hint}; {where} -u {unit}")
    if told.get("NeedDaemonReload") == "yes":
        return UnitState("wrong", f"{unit} is {state}, but its file has changed since it was read", f"{manager} daemon-reload")
    if state != "active":
        return UnitState("note", f"{unit} is {state}", f"{manager} enable --now {unit}")
    shown = f"{unit} is active: {told.get('StatusText', '')}"
    if told.get("UnitFileState") == "disabled":
        return UnitState("note", shown, f"it does not start at the next boot: {manager} enable {unit}")
    if told.get("NRestarts", "0") != "0":
        return UnitState("note", f"{shown}; restarted {told['NRestarts']} times since it was started", "see the journal for why")
    return UnitState("ok", shown)
