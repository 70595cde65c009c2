"""Start a worker from settings: what `settled worker run` calls."""

import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from settled.app import App
from settled.config.loading import Loaded
from settled.config.settings import Settings
from settled.opening import CONFIG_VARIABLE
from settled_worker.terms import overrides_of
from settled_worker.worker import Worker


def run_worker(
    app: App,
    *,
    loaded: Loaded,
    app_ref: str,
    once: bool = False,
    paused: bool = False,
    read_settings: Callable[[], Settings] | None = None,
) -> int:
    """Run a worker until it is told to end; return its exit code. Raises ConfigurationError for what no retry can mend.

    `read_settings` reads the settings anew when SIGHUP asks for it.
    """
    app.reference, app.settings_file = app_ref, loaded.config_file
    app.shell.overrides.update(overrides_of(loaded.settings))
    if not faulthandler.is_enabled():
        with suppress(Exception):  # without a real standard error
            faulthandler.enable()  # a watchdog ends a hung worker by SIGABRT: then it is shown where each thread hung
    with _told_to_runners(loaded.config_file):
        worker = Worker(app, loaded.settings, app_reference=app_ref, once=once, paused=paused, read_settings=read_settings)
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


@contextmanager
def ready_for_signals() -> Iterator[None]:
    """Take signals while the app is imported and nothing has been started: SIGTERM ends at once, SIGHUP finds nothing to reload.

    Without this, SIGHUP would end the process, and the first process of a container would not hear SIGTERM at all.
    """
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _end_before_start), signal.SIGHUP: signal.signal(signal.SIGHUP, _pass_over)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_before_start(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(0)  # nothing is open, and an exception could be swallowed by the module that is being imported


def _pass_over(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN: runners would inherit that."""
