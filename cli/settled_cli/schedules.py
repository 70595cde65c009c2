"""Say when each sweep runs, when it last did, and when it will again."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from settled.config import Settings, SweepSettings
from settled.core.moment import SECOND_US
from settled.store.sweep_runs import SweepRun
from settled_cli.render import utc


def schedules(settings: Settings, runs: Mapping[str, SweepRun], *, now_us: int, served: bool) -> list[dict[str, Any]]:
    """Return one map for each sweep. `served` says that a worker lives: without one nothing runs next."""
    return [_schedule(name, sweep, runs.get(name), now_us if served else None) for name, sweep in settings.sweeps]


def _schedule(name: str, sweep: SweepSettings, last: SweepRun | None, now_us: int | None) -> dict[str, Any]:
    when = sweep.cron or f"every {sweep.every_seconds:g} s"
    return {
        "sweep": name,
        "enabled": sweep.enabled,
        "schedule": when if sweep.enabled else "off",
        "last": None if last is None else utc(last.started_us),
        "moved": None if last is None else last.moved,
        "errors": None if last is None else last.errors,
        "next": None if last is None or now_us is None or not sweep.enabled else utc(_next_us(sweep, last, now_us)),
    }


def _next_us(sweep: SweepSettings, last: SweepRun, now_us: int) -> int | None:
    """Quiet runs are not all remembered, so that the next one of a short interval is never said to be in the past."""
    if sweep.every_seconds is not None:
        return max(now_us, last.started_us + round(sweep.every_seconds * SECOND_US))
    from apscheduler.triggers.cron import CronTrigger  # slow to import, and only a crontab line needs it

    before = datetime.fromtimestamp(now_us / SECOND_US, UTC)
    at = CronTrigger.from_crontab(str(sweep.cron), timezone=UTC).get_next_fire_time(before, before)
    return None if at is None else round(at.timestamp() * SECOND_US)
