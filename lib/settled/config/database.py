"""Decide which ledger this process uses, and refuse to guess between two.

CLI flag, then App(database=), then SETTLED_DATABASE, then settled.toml, then ./settled.db. Nothing is opened here.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from settled.config.loading import DATABASE_DEFAULT, DATABASE_VARIABLE, Loaded
from settled.config.sources import FLAG
from settled.core.errors import ConfigurationError
from settled.core.text import MASK

_SQLITE_URL: Final = re.compile(r"sqlite(\+\w+)?:///(?P<path>[^?]*)(\?.*)?", re.IGNORECASE)
_SECRET_PARAMETER: Final = re.compile(r"(?i)([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&]*")


class DatabaseChoice(NamedTuple):
    """A path or a URL, and who named it: "flag", "App(database=)", "SETTLED_DATABASE", a settings file or "./settled.db"."""

    url_or_path: str
    origin: str


def resolve_database(
    flag: str | None, app_database: str | os.PathLike[str] | None, environ: Mapping[str, str], config: Loaded | None
) -> DatabaseChoice:
    """Return the ledger to use. Raises ConfigurationError where one is blank, or where the flag and the App name two."""
    loaded = DatabaseChoice(config.settings.database, config.origins["database"]) if config and config.settings.database else None
    if flag is None and loaded and loaded.origin == FLAG:
        flag = loaded.url_or_path
    app = None if app_database is None else os.fspath(app_database)
    if flag is not None and app is not None:
        _named(app, "App(database=)")
        if not is_same_database(_named(flag, FLAG).url_or_path, app):
            raise ConfigurationError(
                f"--database names {mask_url(flag)}, but the app names {mask_url(app)} in App(database=). Nothing was opened. "
                f"Leave --database out, or create the App without a database"
            )
    if flag is not None:
        return _named(flag, FLAG)
    if app is not None:
        return _named(app, "App(database=)")
    if DATABASE_VARIABLE in environ:
        return _named(environ[DATABASE_VARIABLE], DATABASE_VARIABLE)
    return loaded or DatabaseChoice(DATABASE_DEFAULT, DATABASE_DEFAULT)


def is_same_database(one: str, other: str) -> bool:
    """Whether two names, however spelled, mean one ledger. Reads links, opens nothing."""
    return _identity(one) == _identity(other)


def mask_url(url_or_path: str) -> str:
    """Return the name with passwords masked, fit to be shown."""
    if "://" not in url_or_path:
        return url_or_path
    parts = urlsplit(url_or_path)
    if parts.password is not None:
        account, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{account.partition(':')[0]}:{MASK}@{host}")
        url_or_path = urlunsplit(parts)
    return _SECRET_PARAMETER.sub(rf"\1{MASK}", url_or_path)


def _named(value: str, origin: str) -> DatabaseChoice:
    if not value.strip():
        named = "--database" if origin == FLAG else origin
        raise ConfigurationError(f"{named} is blank. Nothing was opened. Name a path or a URL, or leave it out")
    return DatabaseChoice(value, origin)


def _identity(url_or_path: str) -> str:
    match = _SQLITE_URL.fullmatch(url_or_path)
    if match:
        return str(Path(match["path"]).resolve())
    return url_or_path if "://" in url_or_path else str(Path(url_or_path).resolve())
