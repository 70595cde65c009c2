"""Read each place where settings may stand into one nested mapping of values, unchecked."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from settled.config.settings import Settings
from settled.core.errors import ConfigurationError

Names = tuple[str, ...]

PREFIX: Final = "SETTLED_"
DELIMITER: Final = "__"
FLAG: Final = "flag"
CONFIG_BYTES_MAX: Final = 1_048_576
RESERVED_VARIABLES: Final = frozenset({"SETTLED_INCARNATION", "SETTLED_CONFIG"})  # ours, but no settings
NEAR: Final = 0.75
_TEXTS: Final = frozenset(name for name, field in Settings.model_fields.items() if field.annotation == str | None)  # taken as they stand


class Source(NamedTuple):
    """The values of one place. `variables` are the names they had, for the environment only."""

    name: str
    values: dict[str, Any]
    variables: Names = ()

    def origin_of(self, path: Names) -> str | None:
        """Return what to call the place of the value at `path`, or None if it is not here."""
        if not has(self.values, path):
            return None
        if not self.variables:
            return self.name
        for length in range(len(path), 0, -1):  # a whole section may stand in one variable, as JSON
            variable = variable_of(path[:length])
            if variable in self.variables:
                return variable
        return next((name for name in self.variables if name.startswith(variable_of(path))), self.name)


def from_flags(flags: Mapping[str, Any]) -> Source:
    """Read the command line's options, nested or by dotted name; None means not given."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        *sections, last = name.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = from_flags(value).values if isinstance(value, Mapping) else value
    return Source(FLAG, values)


def from_environment(environ: Mapping[str, str]) -> Source:
    """Read the SETTLED_* variables; `__` stands between the names of a path. Raises ConfigurationError for a misspelt one."""
    given = {name: value for name, value in environ.items() if name.startswith(PREFIX) and name not in RESERVED_VARIABLES}
    refuse_misspelt(given)
    if not given:
        return Source("the environment", {})
    plain: dict[str, Any] = {name.removeprefix(PREFIX).lower(): value for name, value in given.items()}
    if plain.keys() <= _TEXTS:
        return Source("the environment", plain, tuple(given))
    from settled.config.environment import Environment, SettingsError  # slow to import, and most hosts set no more than the ledger

    try:
        return Source("the environment", Environment(Settings, given, PREFIX, DELIMITER)(), tuple(given))
    except SettingsError as error:
        variable = next((name for name in given if f'"{name.removeprefix(PREFIX).lower()}"' in str(error)), "a SETTLED_* variable")
        raise ConfigurationError(f"{variable} is not the JSON that this setting needs. Nothing was started.") from None


def from_file(file: Path, shown: str, *, required: bool) -> Source | None:
    """Read a TOML file; None if there is none and none is required. Raises ConfigurationError."""
    try:
        with file.open("rb") as stream:
            content = stream.read(CONFIG_BYTES_MAX + 1)
        if len(content) > CONFIG_BYTES_MAX:
            raise ConfigurationError(f"{shown} is larger than {CONFIG_BYTES_MAX} bytes. Nothing was started.")
        return Source(shown, tomllib.loads(content.decode()))
    except FileNotFoundError:
        if not required:
            return None
        raise ConfigurationError(f"there is no settings file {shown}. Nothing was started. Name another with --config") from None
    except OSError as error:
        raise ConfigurationError(f"{shown} cannot be read: {error.strerror}. Nothing was started.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{shown} is not TOML: {error}. Nothing was started.") from None


def refuse_misspelt(given: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a variable that is none of ours but looks so. Others are other programs' business."""
    single = {name for name, value in Settings() if not isinstance(value, (BaseModel, dict))}
    sections = Settings.model_fields.keys() - single
    spelt = {variable_of(path).removeprefix(PREFIX) for path, _ in leaves(Settings())} | {name.upper() for name in Settings.model_fields}
    for variable in sorted(given):
        name = variable.removeprefix(PREFIX)
        first, nested, _ = name.lower().partition(DELIMITER)
        if first in (sections if nested else Settings.model_fields):
            continue  # what stands below a section is checked with the section
        near = [first.upper()] if first in single else difflib.get_close_matches(name, spelt, 1, NEAR)
        if near or nested:
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else ". See: settled config show"
            raise ConfigurationError(f"the environment: {variable} is not a setting{hint}")


def variable_of(path: Names) -> str:
    """Return the environment variable that sets what stands at `path`."""
    return PREFIX + DELIMITER.join(path).upper()


def leaves(value: object, path: Names = ()) -> Iterator[tuple[Names, Any]]:
    """Yield every single setting in a model or mapping, with its path."""
    if isinstance(value, (BaseModel, dict)):
        for name, inner in dict(value).items():
            yield from leaves(inner, (*path, str(name)))
    else:
        yield path, value


def has(values: Any, path: Names) -> bool:
    """Whether something stands at `path`."""
    for name in path:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True
