"""The files of the service: rendered from this package, and put in place without ever overwriting what somebody edited.

Promise: what is installed carries a checksum of itself in its first line, so that a later version can tell its own file, which it
replaces, from an edited one, which it does not.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, NamedTuple

import click

from settled_cli.opening import HIDDEN_FROM_SERVICES

_SYSTEM: Final[Mapping[str, str]] = {
    "settled@.service": "etc/systemd/system/settled@.service",
    "settled-alert@.service": "etc/systemd/system/settled-alert@.service",
    "settled-sweep@.service": "etc/systemd/system/settled-sweep@.service",
    "settled-sweep@.timer": "etc/systemd/system/settled-sweep@.timer",
    "sysusers.conf": "etc/sysusers.d/settled.conf",
    "tmpfiles.conf": "etc/tmpfiles.d/settled.conf",
}
_USER: Final[Mapping[str, str]] = {
    "settled@.service": "systemd/user/settled@.service",
    "settled-alert@.service": "systemd/user/settled-alert@.service",
}
NAMES: Final = tuple(_SYSTEM)
_HEAD: Final = "# Written by settled unit install. sha256="
_SAFE: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "--run-as": (re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,30}"), "no name that systemd makes a user of: letters, digits, _ and -, at most 31"),
    "--group": (re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}"), "no name of a group: letters, digits, and _ . - after the first, at most 31"),
    "--settled": (re.compile(r"/[^\s\x00-\x1f\x7f\"'\\%$]*(?<!/)"), "no absolute path of a command without spaces, quotes, \\, % and $"),
}
"""What a unit file means as it is written. systemd takes an empty User= for root, and a line that it cannot read for none."""
State = Literal["missing", "same", "ours", "edited"]


class UnitFile(NamedTuple):
    """One file: where it belongs below the root (or the user's configuration folder), and what it says."""

    name: str
    place: str
    text: str


def render(*, settled: str, user: str, group: str, for_user: bool) -> list[UnitFile]:
    """Return every file of an installation. `settled` is the absolute path of the command.

    Raises UsageError for a value that would mean something else in these files.
    """
    _refuse_unsafe({"--run-as": user, "--group": group, "--settled": settled})
    values = {"@SETTLED@": settled, "@USER@": user, "@GROUP@": group}
    folder = files("settled_cli") / "units" / ("user" if for_user else "system")
    made = []
    for name, place in (_USER if for_user else _SYSTEM).items():
        text = (folder / name).read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        made.append(UnitFile(name, place, text))
    return made


def state_of(path: Path, text: str) -> State:
    """Return whether a file is not there, says `text`, is an older one of ours, or was edited."""
    if not path.exists():
        return "missing"
    head, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    if rest == text:
        return "same"
    return "ours" if head == _HEAD + _sum(rest) else "edited"


def put(path: Path, text: str) -> None:
    """Write a file whole or not at all, with its checksum."""
    write_whole(path, f"{_HEAD}{_sum(text)}\n{text}", 0o644)


def write_whole(path: Path, text: str, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file under another name and move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)


def hidden(paths: Iterable[Path]) -> Path | None:
    """Return the first path that the sandbox of the system's unit hides: home folders and temporary ones."""
    for path in paths:
        for one in (path.absolute(), path.resolve()):
            if any(one.is_relative_to(folder) for folder in HIDDEN_FROM_SERVICES):
                return one
    return None


def _refuse_unsafe(given: Mapping[str, str]) -> None:
    for option, value in given.items():
        meant, wrong = _SAFE[option]
        if not meant.fullmatch(value):
            raise click.UsageError(f"{option} {value!r} is {wrong}. Nothing was written")


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
