"""Start a worker from settings: what `settled worker run` calls."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from settled.app import App
from settled.config.loading import Loaded
from settled.opening import CONFIG_VARIABLE
from settled_worker.worker import Worker


def run_worker(app: App, *, loaded: Loaded, app_ref: str, once: bool = False, paused: bool = False) -> int:
    """Run a worker until it is told to end; return its exit code. Raises ConfigurationError for what no retry can mend."""
    app.reference, app.settings_file = app_ref, loaded.config_file
    app.shell.overrides.update(overrides_of(loaded))
    with _told_to_runners(loaded.config_file):
        worker = Worker(app, loaded.settings, app_reference=app_ref, once=once, paused=paused)
        code = worker.run()
    if worker.left_behind:
        _end_at_once(code)
    return code


def _end_at_once(code: int) -> NoReturn:
    """End this process with the code of handlers that was left behind in it: their lock is freed when they can send no more.

    An ordinary exit would wait for threads of their own, which may never end.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _told_to_runners(file: Path | None) -> Iterator[None]:
    """Let runners, which import the app by themselves, read the same settings file."""
    before = os.environ.get(CONFIG_VARIABLE)
    if file is not None:
        os.environ[CONFIG_VARIABLE] = str(file.absolute())
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CONFIG_VARIABLE, None)
        else:
            os.environ[CONFIG_VARIABLE] = before


def overrides_of(loaded: Loaded) -> dict[str, dict[str, float | int]]:
    """Return what settings change of the terms of each contract, by the names of Terms."""
    changes: dict[str, dict[str, float | int]] = {}
    for name, chosen in loaded.settings.contracts.items():
        change: dict[str, float | int] = {}
        if chosen.probe_interval_seconds is not None:
            interval_us = round(chosen.probe_interval_seconds * 1_000_000)
            change |= {"probe_initial_us": interval_us, "probe_cap_us": interval_us, "probe_factor": 1.0}
        if chosen.probe_attempts_max is not None:
            change["probe_attempts_max"] = chosen.probe_attempts_max
        if chosen.unknown_age_max_seconds is not None:
            change["unknown_age_max_us"] = round(chosen.unknown_age_max_seconds * 1_000_000)
        changes[name] = change
    return changes
