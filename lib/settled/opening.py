"""What an App takes from the settings of its process: the ledger's name, and what is masked in error texts."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from settled.config import Loaded, load_settings, resolve_database
from settled.core.limits import Limits
from settled.core.text import make_redactor

CONFIG_VARIABLE: Final = "SETTLED_CONFIG"


class Opened(NamedTuple):
    """What an App works with: the path or URL of its ledger, and its limits."""

    database: str
    limits: Limits


def open_settings(flag: str | None, app_database: str | os.PathLike[str] | None, limits: Limits, file: Path | None) -> Opened:
    """Choose the ledger, and put the limits of the settings over `limits`.

    Raises ConfigurationError where settings are wrong, or where the flag and the App name two ledgers.
    """
    loaded = _load(file)
    database = resolve_database(flag, app_database, os.environ, loaded).url_or_path
    chosen = {name: value for name, value in loaded.settings.limits if loaded.origins.get(f"limits.{name}", "default") != "default"}
    return Opened(database, replace(limits, **chosen) if chosen else limits)


def choose_redactor(file: Path | None) -> Callable[[str], str]:
    """Return what masks secrets in error texts before they are cut and stored."""
    return make_redactor(_load(file).settings.redactions)


def _load(file: Path | None) -> Loaded:
    """Read the settings file that was named, to this process or by the environment to a runner, else ./settled.toml if it is there."""
    inherited = os.environ.get(CONFIG_VARIABLE)
    named = file or (Path(inherited) if inherited else None)
    return load_settings({}, config_file=named, environ=os.environ, cwd=Path.cwd())
