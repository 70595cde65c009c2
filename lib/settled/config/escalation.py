"""The section `escalation`: who is told, through which channel, and after how long.

Promise: no secret is a setting. A channel names where its secret is found; the value is read when it is needed and never shown.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from settled.config.values import Count, Seconds, Section, is_loopback
from settled.core.limits import DEFAULTS
from settled.core.text import escape_controls
from settled.core.words import Risk

LOG: Final = "log"  # the channel that is always there
DEFAULT_LADDER: Final = "default"
_CHANNEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ADDRESS: Final = re.compile(r"[^\s@<>\"(),;:\\\[\]]{1,64}@[A-Za-z0-9.-]{1,255}")
_NAMES_OF_SECRET: Final = ("file", "env", "credential")


def _delay(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10 * 366 * 86_400:
        raise ValueError(f"is {value!r}, but must be a number of seconds from 0")
    return float(value)


class SecretSettings(Section):
    """Where a secret is found: a file, a variable of the environment, or a credential of the service manager."""

    file: str | None = None
    env: str | None = None
    credential: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(getattr(self, name) is not None for name in _NAMES_OF_SECRET) != 1:
            raise ValueError(f"needs exactly one of {', '.join(_NAMES_OF_SECRET)}: the place of the secret, never the secret itself")
        if self.credential is not None and ("/" in self.credential or self.credential in ("", ".", "..")):
            raise ValueError("credential must be the name of a credential, not a path")
        return self


class Channel(Section):
    """What every channel has: the longest time that one delivery may take."""

    timeout_seconds: Seconds = DEFAULTS.delivery_seconds

    @field_validator("timeout_seconds")
    @classmethod
    def _bounded(cls, value: float) -> float:
        if value > DEFAULTS.delivery_seconds_max:
            raise ValueError(f"is {value:g}, but must be at most {DEFAULTS.delivery_seconds_max:g} seconds")
        return value


class LogChannel(Channel):
    kind: Literal["log"] = "log"


class WebhookChannel(Channel):
    kind: Literal["webhook"]
    url: str
    secret: SecretSettings
    """The signing secret: any text, or whsec_ followed by base64."""
    ca_file: str | None = None
    """Trust these certificates instead of the system's."""

    @field_validator("url")
    @classmethod
    def _safe_to_call(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"is no URL: {error}") from None
        if escape_controls(url) != url or " " in url or not url.isascii():
            raise ValueError("must be ASCII without blanks and control characters; write others percent-encoded")
        if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
            raise ValueError("must be an https URL with a host")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("must be https; plain http is for this machine only (127.0.0.1, ::1, localhost)")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not hold a user name or a password; deliveries are signed instead")
        return url


class CommandChannel(Channel):
    kind: Literal["command"]
    command: tuple[str, ...] = Field(min_length=1, max_length=64)
    """An executable by its absolute path, and its arguments. The notification comes on its standard input."""

    @field_validator("command")
    @classmethod
    def _absolute(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not PurePosixPath(command[0]).is_absolute() or any("\0" in one for one in command):
            raise ValueError("must begin with the absolute path of an executable")
        return command


class EmailChannel(Channel):
    kind: Literal["email"]
    host: str
    port: Count = 587
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    sender: str
    recipients: tuple[str, ...] = Field(min_length=1, max_length=50)
    username: str | None = None
    password: SecretSettings | None = None
    ca_file: str | None = None

    @field_validator("sender", "recipients")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{escape_controls(address)!r} is no plain address like ops@example.org")
        return value

    @model_validator(mode="after")
    def _is_private(self) -> Self:
        if not self.host.strip() or escape_controls(self.host) != self.host:
            raise ValueError("host is blank")
        if self.tls == "none" and not is_loopback(self.host):
            raise ValueError("tls must be starttls or implicit; none is for this machine only (127.0.0.1, ::1, localhost)")
        if (self.username is None) != (self.password is None):
            raise ValueError("needs username and password together, or neither")
        return self


def _kind(value: Any) -> str:
    return str(value.get("kind", LOG) if isinstance(value, Mapping) else getattr(value, "kind", LOG))


AnyChannel = Annotated[
    Annotated[LogChannel, Tag("log")]
    | Annotated[WebhookChannel, Tag("webhook")]
    | Annotated[CommandChannel, Tag("command")]
    | Annotated[EmailChannel, Tag("email")],
    Discriminator(_kind),
]

CHANNEL_KINDS: Final[Mapping[str, type[Channel]]] = {
    "log": LogChannel,
    "webhook": WebhookChannel,
    "command": CommandChannel,
    "email": EmailChannel,
}


class StepSettings(Section):
    """One step of a ladder. Without `every_seconds` it is taken once."""

    after_seconds: Annotated[float, BeforeValidator(_delay)] = 0.0
    channel: str
    every_seconds: Seconds | None = None


class LadderSettings(Section):
    """Steps by their delay, and for whom: a named contract before a queue before a risk; `default` is for the rest."""

    steps: tuple[StepSettings, ...] = Field(min_length=1, max_length=20)
    contracts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    risks: tuple[Risk, ...] = ()

    @field_validator("steps")
    @classmethod
    def _ascending(cls, steps: tuple[StepSettings, ...]) -> tuple[StepSettings, ...]:
        delays = [step.after_seconds for step in steps]
        if delays != sorted(delays):
            raise ValueError("must stand in the order of their after_seconds")
        return steps


class EscalationSettings(Section):
    """Without any of this every incident goes to the worker's log, once."""

    channels: dict[str, AnyChannel] = Field(default_factory=dict)
    ladders: dict[str, LadderSettings] = Field(default_factory=dict)
    storm_count: Count = DEFAULTS.storm_count
    """More notifications of one channel than this within the window go out as one digest."""
    storm_window_seconds: Seconds = DEFAULTS.storm_window_seconds

    @field_validator("channels")
    @classmethod
    def _names(cls, channels: dict[str, AnyChannel]) -> dict[str, AnyChannel]:
        for name, channel in channels.items():
            if not _CHANNEL_NAME.fullmatch(name):
                raise ValueError(f"{escape_controls(name)[:80]!r} is no name for a channel: letters, digits, - and _, at most 64")
            if name == LOG and channel.kind != LOG:
                raise ValueError("'log' is the log; give this channel another name")
        return channels

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        known = {LOG, *self.channels}
        claimed: dict[tuple[str, str], str] = {}
        for name, ladder in self.ladders.items():
            missing = next((step.channel for step in ladder.steps if step.channel not in known), None)
            if missing is not None:
                raise ValueError(f"ladder {name!r} names the channel {missing!r}, which is not declared; known: {', '.join(sorted(known))}")
            chosen = [("contract", one) for one in ladder.contracts] + [("queue", one) for one in ladder.queues]
            chosen += [("risk", one.value) for one in ladder.risks]
            if name != DEFAULT_LADDER and not chosen:
                raise ValueError(f"ladder {name!r} is for nobody: name contracts, queues or risks, or call it 'default'")
            for one in chosen:
                if one in claimed:
                    raise ValueError(f"the {one[0]} {one[1]!r} is in two ladders, {claimed[one]!r} and {name!r}")
                claimed[one] = name
        return self
