"""What an App takes from the settings of its process: the ledger's name, and what is masked in error texts.

Promise: imports no store, for a runner needs to know what is masked and opens no ledger.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, cast

from settled.codec import Codec
from settled.config import Loaded, load_settings, resolve_database
from settled.config.settings import unknown_limits_of
from settled.core.errors import ConfigurationError
from settled.core.limits import Limits
from settled.core.rules import Rules
from settled.core.text import make_redactor, safe_str
from settled.core.too_many import UnknownLimit

CONFIG_VARIABLE: Final = "SETTLED_CONFIG"


class Opened(NamedTuple):
    """What an App works with: the path or URL of its ledger, its limits, the rules about people, and who tells who acts."""

    database: str
    limits: Limits
    rules: Rules
    authenticator: str | None
    unknown_limits: Mapping[str, UnknownLimit]
    codec: Codec | None


def open_settings(flag: str | None, app_database: str | os.PathLike[str] | None, limits: Limits, file: Path | None) -> Opened:
    """Choose the ledger, and put the limits of the settings over `limits`.

    Raises ConfigurationError where settings are wrong, or where the flag and the App name two ledgers.
    """
    loaded = _load(file)
    database = resolve_database(flag, app_database, os.environ, loaded).url_or_path
    chosen = {name: value for name, value in loaded.settings.limits if loaded.origins.get(f"limits.{name}", "default") != "default"}
    people = loaded.settings.people
    rules = Rules(
        two_person_risks=frozenset(loaded.settings.two_person_risks),
        proposal_expires_seconds=people.proposal_expires_seconds,
        approval_expires_seconds=people.approval_expires_seconds,
    )
    watched = unknown_limits_of(loaded.settings.contracts)
    limits = replace(limits, **chosen) if chosen else limits
    return Opened(database, limits, rules, people.authenticator, watched, choose_codec(loaded))


def choose_codec(loaded: Loaded) -> Codec | None:
    """Return what encrypts texts where the settings or the service manager give keys, None where nobody does."""
    chosen = loaded.settings.encryption
    if chosen.keys_file is None and chosen.key_lines is None and "CREDENTIALS_DIRECTORY" not in os.environ:
        return None
    from settled.encryption import EncryptingCodec, find_keys

    keys = find_keys(chosen.keys_file, chosen.key_lines, os.environ)
    return None if keys is None else EncryptingCodec(keys)


def find_authenticator(reference: str) -> Callable[[], str]:
    """Import MODULE:FUNCTION of the settings. Raises ConfigurationError naming it."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        why = f"cannot be imported: {type(error).__name__}: {safe_str(error)}"
        raise ConfigurationError(f"people.authenticator {reference} {why}. Nothing was changed.") from error
    if not callable(found):
        raise ConfigurationError(f"people.authenticator {reference} is of type {type(found).__name__}, no function. Nothing was changed.")
    return cast("Callable[[], str]", found)


def choose_redactor(file: Path | None) -> Callable[[str], str]:
    """Return what masks secrets in error texts before they are cut and stored."""
    return make_redactor(_load(file).settings.redactions)


def _load(file: Path | None) -> Loaded:
    """Read the settings file that was named, to this process or by the environment to a runner, else ./settled.toml if it is there."""
    inherited = os.environ.get(CONFIG_VARIABLE)
    named = file or (Path(inherited) if inherited else None)
    return load_settings({}, config_file=named, environ=os.environ, cwd=Path.cwd())
