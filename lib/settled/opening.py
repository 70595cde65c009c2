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


def open_settings(flag: str | None, app_database: str | os.PathLike[str] | None, limits: Limits) -> Opened:
    """Choose the ledger, and put the limits of the settings over `limits`.

    Raises ConfigurationError where settings are wrong, or where the flag and the App name two ledgers.
    """
    loaded = _load()
    database = resolve_database(flag, app_database, os.environ, loaded).url_or_path
    chosen = {name: value for name, value in loaded.settings.limits if loaded.origins.get(f"limits.{name}", "default") != "default"}
    return Opened(database, replace(limits, **chosen) if chosen else limits)


def choose_redactor() -> Callable[[str], str]:
    """Return what masks secrets in error texts before they are cut and stored."""
    return make_redactor(_load().settings.redactions)


def _load() -> Loaded:
    """Read the file that `--config` named, which runners inherit by the environment, else ./settled.toml where there is one."""
    named = os.environ.get(CONFIG_VARIABLE)
    file = Path(named) if named else Path("settled.toml")
    return load_settings({}, config_file=file if named or file.exists() else None, environ=os.environ, cwd=Path.cwd())
