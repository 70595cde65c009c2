"""Load the settings, and say of each where it came from.

The command line's flags win over SETTLED_* variables, these over settled.toml, that over the defaults. Every mistake is named
with its source and its full path; none is passed over.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from settled.config.escalation import CHANNEL_KINDS
from settled.config.settings import Settings
from settled.config.sources import FLAG, NEAR, Names, Source, from_environment, from_file, from_flags, leaves
from settled.core.errors import ConfigurationError
from settled.core.text import MASK, one_line, safe_repr

CONFIG_FILE: Final = "settled.toml"
DATABASE_VARIABLE: Final = "SETTLED_DATABASE"
DATABASE_DEFAULT: Final = "./settled.db"
DEFAULT: Final = "default"
_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings in force, the origin of each by its dotted name, and the file that was read."""

    settings: Settings
    origins: dict[str, str]
    config_file: Path | None


def load_settings(flags: Mapping[str, Any], *, config_file: Path | None, environ: Mapping[str, str], cwd: Path) -> Loaded:
    """Return the settings. `flags` are nested or dotted names; None among them means not given.

    Without `config_file` the one named settled.toml in `cwd` is read if there is one. A relative database path in a file is
    relative to that file's folder. Raises ConfigurationError.
    """
    file, shown_file = (cwd / CONFIG_FILE, CONFIG_FILE) if config_file is None else (config_file, str(config_file))
    from_the_file = from_file(file, shown_file, required=config_file is not None)
    sources = [from_flags(flags), from_environment(environ), *([from_the_file] if from_the_file else [])]
    try:
        settings = Settings(**_merged(sources))
    except ValidationError as error:
        raise ConfigurationError("\n".join(_sentence(problem, sources) for problem in error.errors())) from None
    # None is never set, only left: by nobody, or for the other schedule of a sweep.
    origins = {".".join(path): (value is not None and _origin(path, sources)) or DEFAULT for path, value in leaves(settings)}
    if settings.database is None:
        origins["database"] = DATABASE_DEFAULT
    elif from_the_file and origins["database"] == from_the_file.name and "://" not in settings.database:
        # Which ledger a file means must not depend on the folder a command is typed in.
        settings = settings.model_copy(update={"database": str(file.absolute().parent / settings.database)})
    return Loaded(settings=settings, origins=origins, config_file=file if from_the_file else None)


def _origin(path: Names, sources: Sequence[Source]) -> str | None:
    return next((origin for source in sources if (origin := source.origin_of(path)) is not None), None)


def _merged(sources: Sequence[Source]) -> dict[str, Any]:
    for name in (name for source in sources for name in source.values if name.startswith("_")):
        raise ConfigurationError(f"{name} is not a setting")  # and would be taken for an option of pydantic-settings
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        _drop_other_schedule(merged.get("sweeps"), source.values.get("sweeps"))
        _merge(merged, source.values)
    return merged


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            below = into.get(name)
            into[name] = dict(below) if isinstance(below, Mapping) else {}
            _merge(into[name], value)
        else:
            into[name] = value


def _drop_other_schedule(lower: object, upper: object) -> None:
    """A sweep has one schedule: a crontab line of a stronger source replaces an interval of a weaker one, and the reverse."""
    if not isinstance(lower, dict) or not isinstance(upper, Mapping):
        return
    for name, sweep in upper.items():
        if not isinstance(sweep, Mapping) or not isinstance(lower.get(name), dict):
            continue
        for mine, other in (("cron", "every_seconds"), ("every_seconds", "cron")):
            if mine in sweep:
                lower[name].pop(other, None)


def _sentence(problem: ErrorDetails, sources: Sequence[Source]) -> str:
    """Say one mistake: where it stands, which setting, what is wrong, what would be right."""
    path = tuple(str(name) for name in problem["loc"])
    source = next((found for length in range(len(path), 0, -1) if (found := _origin(path[:length], sources))), "settings")
    where = f"{'command line' if source == FLAG else source}: {'.'.join(_as_written(path))}"
    private = any(name in ("secret", "password") for name in path)  # a secret in the wrong place stays one
    shown = MASK if private else one_line(safe_repr(problem["input"]), _SHOWN_MAX)
    match problem["type"]:
        case "extra_forbidden":
            known = _names_beside(path)
            near = difflib.get_close_matches(path[-1], known, 1, NEAR)
            return f"{where} is not a setting; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}")
        case "value_error":
            said = str(problem.get("ctx", {}).get("error", problem["msg"]))
        case "model_type" | "model_attributes_type" | "dict_type":
            said = f"is {shown}, but must be a section with settings of its own"
        case "literal_error":
            said = f"is {shown}, but must be {problem.get('ctx', {}).get('expected')}"
        case "missing":
            said = "is missing"
        case _:
            said = f"is {shown}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
    return f"{where} {one_line(said, 5 * _SHOWN_MAX)}. Nothing was started."


def _as_written(path: Names) -> Names:
    """Return the path as it stands in the file: the kind of a channel chose what is checked, but is no name above it."""
    tagged = path[:2] == ("escalation", "channels") and len(path) > 3 and path[3] in CHANNEL_KINDS
    return (*path[:3], *path[4:]) if tagged else path


def _names_beside(path: Names) -> list[str]:
    """Return the settings that exist where the last name of `path` stands."""
    model: Any = Settings
    for name in path[:-1]:
        if get_origin(model) in (dict, tuple):
            model = get_args(model)[1 if get_origin(model) is dict else 0]
        elif name in CHANNEL_KINDS:
            model = CHANNEL_KINDS[name]
        elif isinstance(model, type) and issubclass(model, BaseModel) and name in model.model_fields:
            model = model.model_fields[name].annotation
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
