"""The checks of `settled doctor`: what is so, whether it is right, and what to do where it is not.

Promise: a check that cannot be made is a finding, never the end of the examination. Nothing is changed.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from grp import getgrgid
from pathlib import Path
from pwd import getpwuid
from shutil import disk_usage
from typing import Final, Literal, NamedTuple

from settled.app import App
from settled.clock import boot_id_short
from settled.config import Loaded
from settled.core.errors import SettledError
from settled.core.moment import SECOND_US
from settled.core.text import safe_str
from settled.execution.incarnation import is_list_partial, marked_processes, start_ticks
from settled.store.engine import file_system_of
from settled.store.maintenance import synchronous_mode
from settled.store.reads import highest_wall_us
from settled.store.revisions import HEAD
from settled.store.sqlite_library import library_version, sqlite_module, wal_is_safe
from settled_cli.render import utc
from settled_cli.unit_state import unit_state
from settled_cli.workers import live_workers

_YEAR_MIN: Final = 2025
_OTHERS: Final = stat.S_IRWXO
_LOST_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
_LAYERED_FILE_SYSTEMS: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})


class Finding(NamedTuple):
    """One check. `note` is a limit of this host, which is not wrong but worth knowing."""

    check: str
    verdict: Literal["ok", "note", "wrong"]
    found: str
    what_to_do: str = ""


Check = Callable[[App, Loaded], Iterator[Finding]]


def examine(app: App, loaded: Loaded) -> list[Finding]:
    """Make every check."""
    findings: list[Finding] = []
    for check in _CHECKS:
        try:
            findings += check(app, loaded)
        except (SettledError, OSError) as error:
            findings.append(Finding(check.__name__.strip("_"), "wrong", safe_str(error), "see the sentence"))
    return findings


def _place(app: App, _loaded: Loaded) -> Iterator[Finding]:
    path = app.ledger.path
    there = path.stat()
    yield Finding("database", "ok", str(path))
    owner = _user(there.st_uid)
    mine = there.st_uid == os.geteuid() or os.access(path, os.W_OK)
    yield Finding(
        "owner", "ok" if mine else "wrong", owner, "" if mine else f"run settled as {owner}, or share the ledger: settled init --group"
    )
    for each in (path, *(Path(f"{path}{suffix}") for suffix in ("-wal", "-shm", "-journal")), app.ledger.run_directory):
        if each.exists():
            yield _mode(each, there)
    if not app.ledger.run_directory.is_dir():
        yield Finding(
            "run directory", "wrong", f"{app.ledger.run_directory} is missing", "stop every worker, then make it again: settled init"
        )
    yield _folder(path.parent)
    yield _file_system(path)
    free = disk_usage(path.parent).free
    short = free < app.ledger.limits.disk_free_bytes_min
    yield Finding(
        "disk space",
        "wrong" if short else "ok",
        f"{free // 1_048_576} MiB free",
        "free disk space, or nothing can be recorded" if short else "",
    )


def _mode(each: Path, ledger: os.stat_result) -> Finding:
    """A file beside the ledger that has another group or less of a mode locks out those the ledger is shared with."""
    found = each.stat()
    mode, name = stat.S_IMODE(found.st_mode), f"mode of {each.name}"
    shared = ledger.st_mode & stat.S_IWGRP
    if mode & _OTHERS:
        return Finding(name, "wrong", f"{mode:04o}", f"chmod o-rwx {each}")
    if shared and (not mode & stat.S_IWGRP or found.st_gid != ledger.st_gid):
        group = _group(ledger.st_gid)
        return Finding(
            name, "wrong", f"{mode:04o}, group {_group(found.st_gid)}", f"the ledger is shared: chgrp {group} {each} && chmod g+rwX {each}"
        )
    return Finding(name, "ok", f"{mode:04o}" + (f", group {_group(found.st_gid)}" if shared else ""))


def _folder(folder: Path) -> Finding:
    """Whoever may write in the folder may put another file in the ledger's place."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_IWOTH:
        return Finding("folder", "wrong", f"{mode:04o}: everybody may replace the ledger", f"chmod o-w {folder}, or move the ledger")
    return Finding("folder", "ok", f"{mode:04o}")


def _file_system(path: Path) -> Finding:
    kind = file_system_of(path)
    if kind in _LOST_FILE_SYSTEMS:
        return Finding("file system", "wrong", f"{kind}: in memory, and lost at a reboot", "move the ledger to a disk")
    if kind in _LAYERED_FILE_SYSTEMS:
        return Finding("file system", "note", f"{kind}: lost with its container", "put the ledger on a volume of one host")
    return Finding("file system", "ok", kind or "the system does not tell")


def _library(_app: App, _loaded: Loaded) -> Iterator[Finding]:
    module = sqlite_module()
    version = library_version(module)
    found = f"{module.__name__} {'.'.join(map(str, version))}"
    if wal_is_safe(version):
        yield Finding("SQLite", "ok", found)
    else:
        yield Finding(
            "SQLite", "note", f"{found}, which can corrupt a ledger in WAL mode", "pip install pysqlite3, or keep the journal mode delete"
        )


def _ledger(app: App, _loaded: Loaded) -> Iterator[Finding]:
    meta = app.ledger.meta
    yield Finding("schema", "ok", HEAD)
    strange = ", ".join(app.ledger.misplaced)
    yield Finding(
        "place",
        "wrong" if strange else "ok",
        f"a copy, or moved ({strange} differ): nothing is dispatched from it" if strange else "where it was made or adopted",
        "settled db adopt --reason … (or --moved, where the old place was stopped first and is gone)" if strange else "",
    )
    mode, chosen = meta["journal_mode"], meta["journal_mode_chosen"]
    same = mode == chosen
    yield Finding("journal mode", "ok" if same else "wrong", mode, "" if same else f"it was {chosen}: settled db journal {chosen}")
    synchronous = synchronous_mode(app.ledger)
    yield Finding("synchronous", "ok" if synchronous in ("full", "extra") else "wrong", synchronous)
    alive = live_workers(app)
    found = ", ".join(f"pid {one.pid}" for one in alive) or "none lives"
    yield Finding("workers", "ok" if alive else "note", found, "" if alive else "nothing moves without one: settled worker run")


def _clock(app: App, _loaded: Loaded) -> Iterator[Finding]:
    now = app.shell.clock.now()
    with app.ledger.read() as transaction:
        highest = highest_wall_us(transaction)
    year = datetime.fromtimestamp(now.wall_us // SECOND_US, UTC).year
    if now.wall_us < highest:
        yield Finding(
            "clock",
            "wrong",
            f"{utc(now.wall_us)}, but the ledger has seen {utc(highest)}",
            "set the clock: until then no key window is open",
        )
    elif year < _YEAR_MIN:
        yield Finding("clock", "wrong", str(utc(now.wall_us)), "set the clock")
    else:
        yield Finding("clock", "ok", str(utc(now.wall_us)))


def _host(_app: App, _loaded: Loaded) -> Iterator[Finding]:
    """Say what this host cannot do, and what follows from it."""
    if marked_processes("0" * 20, started_ticks=start_ticks(os.getpid())) is None:
        yield Finding(
            "process environments", "note", "some cannot be read",
            "process_gone cannot be shown here, so that an absence after a crash waits for a person: run the worker as a user of its own",
        )  # fmt: skip
    elif os.geteuid() != 0 and is_list_partial(own=False):
        yield Finding(
            "process environments", "note", "processes of other users are hidden (hidepid, ProtectProc=)",
            "process_gone cannot be shown for what other users' callers leave behind: leave ProtectProc= out of the unit",
        )  # fmt: skip
    else:
        yield Finding("process environments", "ok", "readable")
    if sys.platform.startswith("linux"):
        yield Finding("system", "ok", sys.platform)
    else:
        yield Finding("system", "note", f"{sys.platform}: what it cannot show stays unknown", "run the worker on Linux")


def _settings(_app: App, loaded: Loaded) -> Iterator[Finding]:
    yield Finding("settings", "ok", str(loaded.config_file.absolute()) if loaded.config_file else "defaults, no settled.toml here")


def _unit(_app: App, loaded: Loaded) -> Iterator[Finding]:
    yield Finding("unit", *unit_state(loaded.config_file))


def _boot(app: App, _loaded: Loaded) -> Iterator[Finding]:
    """Processes of one ledger must see one boot ID; a sandbox inside a container may show the machine's own."""
    here = boot_id_short()
    others = [one for one in live_workers(app) if one.boot_id != here]
    if others:
        yield Finding(
            "boot ID", "note", f"pid {others[0].pid} was shown another boot ID than this process",
            "what it leaves behind after a crash waits for the worker itself; in a container: remove ProtectKernelTunables from the unit",
        )  # fmt: skip
    else:
        yield Finding("boot ID", "ok", here)


_CHECKS: Final[tuple[Check, ...]] = (_place, _library, _ledger, _clock, _boot, _host, _settings, _unit)


def _user(uid: int) -> str:
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"
