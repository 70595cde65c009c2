"""Show the settings in force with their origins, fit for a terminal or a ticket: what may be secret is masked."""

import re
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel

from settled.config.database import mask_url
from settled.config.loading import DATABASE_DEFAULT, Loaded
from settled.config.sources import leaves
from settled.core.text import MASK

_SECRET: Final = re.compile(r"(?i)secret|password|passphrase|token|credential|(^|_)keys?$|(^|_)key_")


class ShownSetting(NamedTuple):
    name: str
    value: Any
    origin: str


def shown_settings(loaded: Loaded) -> list[ShownSetting]:
    """Return every setting by its dotted name, its value as JSON can hold it, and its origin."""
    return [ShownSetting(name := ".".join(path), _shown(name, value), loaded.origins[name]) for path, value in leaves(loaded.settings)]


def _shown(name: str, value: Any) -> Any:
    if name == "database":
        return mask_url(value or DATABASE_DEFAULT)
    if name == "redactions":  # a pattern may spell out the secret that it hides
        return [MASK] * len(value)
    last = name.rpartition(".")[2]
    if name.startswith("escalation.channels."):
        return _of_channel(last, value)
    if isinstance(value, tuple):
        return [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in value]
    return MASK if value is not None and _SECRET.search(last) else value


def _of_channel(last: str, value: Any) -> Any:
    """A path or a query of a URL, and the arguments of a command, are where people put tokens. Places of secrets are none."""
    if last == "url":
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.netloc}/" + (MASK if parts.path.strip("/") or parts.query else "")
    if last == "command":
        return [value[0], *([MASK] * (len(value) - 1))]
    return list(value) if isinstance(value, tuple) else value
