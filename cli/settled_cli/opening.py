"""Open what a command works on: the settings, the ledger, and the user's own app only where its code is needed.

Promise: no ledger is ever created here, and an operator's command imports no user code.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from settled.app import App
from settled.config import Loaded, load_settings, resolve_database
from settled.core.errors import ConfigurationError
from settled.core.text import one_line, safe_str
from settled.store.engine import ledger_path
from settled_cli.invocation import Invocation

APP_VARIABLE: Final = "SETTLED_APP"
HIDDEN_FROM_SERVICES: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
_REASON_MAX: Final = 300
_HOW: Final = {"app": " with --app", "sandbox": " with --sandbox"}


def load(invocation: Invocation) -> Loaded:
    """Return the settings in force. Raises ConfigurationError."""
    file = None if invocation.config is None else Path(invocation.config)
    return load_settings({"database": invocation.database}, config_file=file, environ=os.environ, cwd=Path.cwd())


def ledger_file(invocation: Invocation) -> Path:
    """Return the absolute path of the ledger that is meant, whether it exists or not. Raises ConfigurationError."""
    return ledger_path(resolve_database(invocation.database, None, os.environ, load(invocation)).url_or_path)


def open_app(invocation: Invocation) -> App:
    """Return an app without contracts on an existing ledger: enough for whatever works from rows and stored terms."""
    loaded = load(invocation)
    path = ledger_path(resolve_database(invocation.database, None, os.environ, loaded).url_or_path)
    if not is_there(path):
        raise missing(path)
    app = App(str(path))
    app.settings_file = loaded.config_file
    return closed_in_the_end(app)


def open_app_for(invocation: Invocation, path: Path) -> App:
    """Return an app without contracts for a ledger that may not be there."""
    app = App(str(path))
    app.settings_file = load(invocation).config_file
    return closed_in_the_end(app)


def is_there(path: Path) -> bool:
    """Whether there is a file at `path`. Raises ConfigurationError where this user may not even look."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _hidden(path) or ConfigurationError(
            f"the ledger {path} cannot be reached by this user ({error.strerror}). Nothing was opened. "
            f"Check the modes of its folders, and whether this user is in the group that the ledger is shared with"
        ) from error
    return True


def missing(path: Path) -> ConfigurationError:
    """Return the error for a ledger that is not there, or that the sandbox of a service hides."""
    return _hidden(path) or ConfigurationError(
        f"there is no ledger at {path}. Nothing was created. Run: settled init --database {path}"
    )


def _hidden(path: Path) -> ConfigurationError | None:
    """Return the error for a place that a unit hides from its service, if this is such a service."""
    a_service = "INVOCATION_ID" in os.environ and os.getppid() == 1
    if not a_service or not any(path.is_relative_to(folder) for folder in HIDDEN_FROM_SERVICES):
        return None
    return ConfigurationError(
        f"there is no ledger at {path}, as far as this service can see: its unit hides home folders and has a /tmp of its own "
        f"(ProtectHome, PrivateTmp). Nothing was created. Keep the ledger below /var/lib/settled"
    )


def app_reference(given: str | None, loaded: Loaded) -> str | None:
    """Return MODULE:APP from --app, else SETTLED_APP, else the settings file; None where nobody names one."""
    return given or os.environ.get(APP_VARIABLE) or loaded.settings.app


def load_user_app(invocation: Invocation, given: str | None, what: str) -> tuple[App, str, Loaded]:
    """Import the user's app for `what`, on the ledger that is meant. Raises ConfigurationError."""
    loaded = load(invocation)
    reference = app_reference(given, loaded)
    if reference is None:
        raise ConfigurationError(
            f"{what} needs your contracts. Nothing was started. Name your app: --app MODULE:APP, {APP_VARIABLE}, or app in settled.toml"
        )
    app = import_app(reference)
    path = ledger_path(resolve_database(invocation.database, app.database, os.environ, loaded).url_or_path)
    if not is_there(path):
        raise missing(path)
    app.settings_file = loaded.config_file
    app.flag, app.reference = str(path), reference  # runners import the same app by the same name
    return closed_in_the_end(app), reference, loaded


def closed_in_the_end(app: App) -> App:
    """Have an app closed when the command ends, whatever ends it: what it opened, and its own presence in the ledger."""
    click.get_current_context().call_on_close(app.close)
    return app


def import_app(reference: str) -> App:
    """Import MODULE:APP, the working directory first. Raises ConfigurationError naming the module and what went wrong."""
    found = import_object(reference, "app")
    if not isinstance(found, App):
        kind = type(found).__name__
        raise ConfigurationError(f"{reference} is of type {kind}, not a settled.App. Nothing was started. Name the App object.")
    return found


def import_object(reference: str, what: str, *, missing_is: Any = ...) -> Any:
    """Import MODULE:NAME, the working directory first; `missing_is` is returned where the module has no such name.

    Raises ConfigurationError naming the module and what went wrong.
    """
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ConfigurationError(
            f"the {what} {reference!r} is not of the form MODULE:{what.upper()}, for example shop.effects:{what}. Nothing was started."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the answer alone
            found: object = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part) if missing_is is ... else getattr(found, part, missing_is)
    except (KeyboardInterrupt, ConfigurationError):
        raise
    except BaseException as error:  # a module may raise anything, SystemExit included, while it is imported
        said = one_line(f"{type(error).__name__}: {safe_str(error)}", _REASON_MAX)
        raise ConfigurationError(
            f"the {what} {reference} cannot be imported: {said}. Nothing was started. Mend {module}, or name another{_HOW.get(what, '')}"
        ) from error
    return found
