"""Name the ledger that this process uses, from the flag, the App, the environment and settled.toml."""

import os
from pathlib import Path

from settled.config import load_settings, resolve_database


def choose_database(flag: str | None, app_database: str | os.PathLike[str] | None) -> str:
    """Return the path or URL of the ledger. Raises ConfigurationError where two of them disagree."""
    file = Path("settled.toml")
    loaded = load_settings({}, config_file=file if file.exists() else None, environ=os.environ, cwd=Path.cwd())
    return resolve_database(flag, app_database, os.environ, loaded).url_or_path
