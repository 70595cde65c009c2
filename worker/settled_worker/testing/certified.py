"""The worker that a certification starts, and what its runners import: `python -m settled_worker.testing.certified`.

With `submit` it is the caller instead, who asks for the whole round. Everything comes by environment, so that worker and runner of one
round have the same.
"""

import json
import os
import sys
from pathlib import Path
from typing import Final

from settled.execution.runner import import_app
from settled_worker.testing.reaching import Watch, WatchedContracts

APP: Final = "CERTIFIED_APP"
TERMS: Final = "CERTIFIED_TERMS"
POINT: Final = "CERTIFIED_POINT"
HOST: Final = "CERTIFIED_HOST"
FOLDER: Final = "CERTIFIED_FOLDER"
DATABASE: Final = "settled.db"
SETTINGS: Final = "settled.toml"
REQUESTS: Final = "requests.json"
SUBMIT: Final = "submit"
REFERENCE: Final = "settled_worker.testing.certified:app"


def watch_of_environment() -> Watch:
    """Return where this process ends, and how its host fails it."""
    return Watch(os.environ.get(POINT, ""), os.environ.get(HOST, ""), Path(os.environ[FOLDER]))


def __getattr__(name: str) -> WatchedContracts:
    """Make `app` when a runner asks for it."""
    if name != "app":
        raise AttributeError(name)
    globals()[name] = made = WatchedContracts(import_app(os.environ[APP]), watch_of_environment())
    return made


def main(arguments: list[str]) -> int:
    """Be the worker, or whoever submits."""
    from settled.config import load_settings  # a runner needs none of these
    from settled.logs import configure_logs
    from settled_worker.main import run_worker
    from settled_worker.testing.watched import WatchedApp

    sys.path.insert(0, os.getcwd())
    watch = watch_of_environment()
    loaded = load_settings({}, config_file=watch.folder / SETTINGS, environ={}, cwd=watch.folder)
    configure_logs(loaded.settings.logs.format, loaded.settings.logs.level)
    theirs = import_app(os.environ[APP])
    app = WatchedApp(theirs, watch.folder / DATABASE, terms=json.loads(os.environ[TERMS]), watch=watch)
    if arguments == [SUBMIT]:
        app.submit_many(json.loads((watch.folder / REQUESTS).read_text()))
        return 0
    return run_worker(app, loaded=loaded, app_ref=REFERENCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
