"""A real control group that is handed to a test as a service manager hands one to a worker, or the reason why there is none."""

import contextlib
import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.execution.cgroup import kill_group, remove_group
from tests.conftest import eventually

ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
"""`sh -c ENTER GROUP COMMAND…`: the command starts in the group."""


def enter(group: Path, command: list[str]) -> list[str]:
    """Return the command line that starts `command` in `group`."""
    return ["/bin/sh", "-c", ENTER, str(group), *command]


@contextlib.contextmanager
def handed_group() -> Iterator[Path]:
    """Make a group with the mark of delegation; kill and remove it afterwards. Skips, and says so aloud, where none can be had."""
    group, why = _make()
    if group is None:
        said = f"no control group of version 2 can be made here ({why}): what one adds to a kill and to a fence was NOT tested"
        warnings.warn(said, stacklevel=1)
        pytest.skip(said)
    try:
        yield group
    finally:
        kill_group(group)
        eventually(lambda: _gone(group))


def _make() -> tuple[Path | None, str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    if not points:
        return None, "no cgroup2 file system is mounted"
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    parent = Path(points[0]) / own.strip().lstrip("/")
    group = (parent if parent.exists() else Path(points[0])) / f"settled-test-{secrets.token_hex(6)}"
    try:
        group.mkdir()
        os.setxattr(group, "user.delegate", b"1")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None, str(error)
    return group, ""


def _gone(group: Path) -> bool:
    remove_group(group)
    return not group.exists()
