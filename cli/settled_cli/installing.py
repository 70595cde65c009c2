"""Put the service on this host: files, settings of an instance, and what the system must be told."""

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import click

from settled.core.text import one_line
from settled_cli.invocation import Refused
from settled_cli.unit_files import UnitFile, put, state_of, write_whole

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_BOOTED: Final = Path("/run/systemd/system")
_SAID_MAX: Final = 300
_SECONDS: Final = 60


def instance_name(name: str) -> str:
    """Return the name of an instance. Raises UsageError for one that a unit or a file could not bear."""
    bare = name.removesuffix(".service").removeprefix("settled@")
    if not _NAME.fullmatch(bare):
        raise click.UsageError(f"{name!r} is no name for an instance: letters, digits, and . _ : - after the first, at most 64")
    return bare


class Installation(NamedTuple):
    """Where an installation goes. `root` is "/" unless files are made for a package; `configuration` holds the settings files."""

    root: Path
    for_user: bool
    for_package: bool
    account: str

    @classmethod
    def prepare(cls, *, root: Path | None, for_user: bool, account: str) -> Self:
        """Raises Refused where this user may not install for the system."""
        if root is None and not for_user and os.geteuid() != 0:
            raise Refused("the units of the system are installed by root. Nothing was written. Run it with sudo, or with --user")
        return cls(root or (home("XDG_CONFIG_HOME", ".config") if for_user else Path("/")), for_user, root is not None, account)

    @property
    def configuration(self) -> Path:
        return self.root / ("settled" if self.for_user else "etc/settled")

    def edited(self, files: Sequence[UnitFile]) -> list[Path]:
        """Return the files that somebody edited since they were installed."""
        return [self.root / one.place for one in files if state_of(self.root / one.place, one.text) == "edited"]

    def put(self, files: Sequence[UnitFile]) -> list[dict[str, str]]:
        """Write the files that differ."""
        done = {"missing": "written", "same": "left as it is", "ours": "replaced", "edited": "overwritten"}
        rows = []
        for one in files:
            path = self.root / one.place
            state = state_of(path, one.text)
            if state != "same":
                put(path, one.text)
            rows.append({"file": str(path), "done": done[state]})
        return rows

    def settings(self, name: str, app: str | None) -> dict[str, str]:
        """Write the settings file of an instance, once."""
        path = self.configuration / f"{name}.toml"
        if path.exists():
            return {"file": str(path), "done": "left as it is"}
        data = home("XDG_DATA_HOME", ".local/share") / "settled" if self.for_user else Path("/var/lib/settled")
        named = f"app = {json.dumps(app)}\n" if app else '# app = "shop.effects:app"\n'
        write_whole(path, f'# Every setting: settled config show\ndatabase = "{data / name / "settled.db"}"\n{named}', 0o600)
        return {"file": str(path), "done": "written"}

    def activate(self) -> Iterator[str]:
        """Tell the system; yield what it could not be told."""
        if self.for_package:
            return
        if not self.for_user:
            yield from _run("systemd-sysusers", "/etc/sysusers.d/settled.conf")
            yield from _run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/settled.conf")
            yield from self._own_settings()
        if _BOOTED.is_dir():
            yield from _run("systemctl", *(["--user"] if self.for_user else []), "daemon-reload")
        else:
            yield "systemd does not run here, so that it was not told of the new files"

    def _own_settings(self) -> Iterator[str]:
        """Give the settings files to the workers' user: they may hold secrets, and its group is not meant to read them."""
        try:
            owner = pwd.getpwnam(self.account)
        except KeyError:
            yield f"there is no user {self.account} yet: nobody but root can read the settings in {self.configuration}"
            return
        for path in self.configuration.glob("*.toml"):
            if path.stat().st_uid == 0 and path.stat().st_mode & 0o077 == 0:
                os.chown(path, owner.pw_uid, 0)
                path.chmod(0o400)


def next_steps(instance: str | None, app: str | None, group: str, installation: Installation) -> list[str]:
    """Return what is left to be done by hand, as commands."""
    if installation.for_package:
        return []
    name, settings = instance or "NAME", installation.configuration / f"{instance or 'NAME'}.toml"
    steps = [] if instance and app else [f"name your app in {settings}"]
    if installation.for_user:
        steps += [f"then: settled --config {settings} init", f"then: systemctl --user enable --now settled@{name}"]
        return [*steps, "to let it run while you are not logged in: loginctl enable-linger"]
    as_worker = f"runuser -u {installation.account} --"
    steps += [f"then: {as_worker} settled --config {settings} init --group {group}", f"then: systemctl enable --now settled@{name}"]
    return steps


def _run(*command: str) -> Iterator[str]:
    if shutil.which(command[0]) is None:
        yield f"{command[0]} is not on this system: do by hand what {command[-1]} says"
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"{' '.join(command)} did not run: {one_line(str(error), _SAID_MAX)}"
        return
    if done.returncode != 0:
        yield f"{' '.join(command)} failed ({done.returncode}): {one_line(done.stderr or done.stdout, _SAID_MAX)}"


def home(variable: str, below: str) -> Path:
    """Return a folder of this user by the XDG base directory specification."""
    chosen = os.environ.get(variable)
    return Path(chosen) if chosen and Path(chosen).is_absolute() else Path.home() / below
