"""Take over changed settings in a running worker: those that can change, and the names of those that need a new start.

Promise: nothing is half taken over. A setting is live only if it stands in `LIVE`; a new one is not, until somebody shows that it may.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from settled.config.settings import Settings
from settled.config.sources import leaves
from settled.logs import get_log

log = get_log("settled.worker")

LIVE_WORKER: Final = ("poll_seconds", "drain_seconds", "abandoned_max", "hung_seconds")
LIVE_SECTIONS: Final = ("sweeps", "contracts", "logs", "health")
LIVE: Final = (*LIVE_SECTIONS, *(f"worker.{name}" for name in LIVE_WORKER))
"""What SIGHUP changes: these settings, and all below these sections."""


def read_again(read: Callable[[], Settings] | None, old: Settings) -> tuple[Settings, str | None]:
    """Return the settings in force after a reload, and what an operator should be shown about it, if anything."""
    if read is None:
        return old, None
    try:
        changes = take_over(old, read())
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, a worker that works goes on
        log.error("worker.reload_refused", error=str(error), then="the settings read before stay in force")
        return old, f"reload refused, the old settings stay in force: {error}"
    log.info("worker.reloaded", changed=list(changes.live))
    if not changes.restart:
        return changes.settings, None
    log.warning("worker.reload_needs_restart", settings=list(changes.restart))
    return changes.settings, f"reloaded; a restart is needed for {', '.join(changes.restart)}"


class Changes(NamedTuple):
    """`settings` are those in force from now on; `live` and `restart` name what changed in the files by its dotted name."""

    settings: Settings
    live: tuple[str, ...]
    restart: tuple[str, ...]


def take_over(old: Settings, new: Settings) -> Changes:
    """Return what follows from reading `new` while `old` is in force."""
    before, after = _flat(old), _flat(new)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name, _ABSENT) != after.get(name, _ABSENT))
    live = tuple(name for name in changed if is_live(name))
    chosen: dict[str, Any] = {section: getattr(new, section) for section in LIVE_SECTIONS}
    chosen["worker"] = old.worker.model_copy(update={name: getattr(new.worker, name) for name in LIVE_WORKER})
    return Changes(old.model_copy(update=chosen), live, tuple(name for name in changed if name not in live))


def is_live(name: str) -> bool:
    """Whether a setting, by its dotted name, can change without a new start."""
    return any(name == one or name.startswith(f"{one}.") for one in LIVE)


_ABSENT: Final = object()


def _flat(settings: Settings) -> Mapping[str, Any]:
    return {".".join(path): value for path, value in leaves(settings)}
