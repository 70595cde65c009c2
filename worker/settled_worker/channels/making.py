"""Make a channel from its settings, and find out what is wrong with it before the night."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from settled.clock import Clock
from settled.config.escalation import LOG, AnyChannel, CommandChannel, EmailChannel, LogChannel, SecretSettings, WebhookChannel
from settled.core.text import safe_str
from settled.logs import get_log
from settled_worker.channels.command import Command
from settled_worker.channels.message import Channel, DeliveryFailedError, Message
from settled_worker.channels.secrets import read_secret

log = get_log("settled.escalation")


class Log:
    """The worker's own log, where an alert on the log finds it."""

    def send(self, message: Message) -> None:
        """Write one line at level error, a test at warning."""
        facts = dict(message.facts())
        say = log.warning if facts["kind"] == "test" else log.error
        facts["notification"] = facts.pop("kind")
        say("incident.notified", **facts)


def make_channel(settings: AnyChannel, *, environ: Mapping[str, str], clock: Clock) -> Channel:
    """Return the channel that the settings describe."""

    def wall_us() -> int:
        return clock.now().wall_us

    match settings:
        case WebhookChannel():
            from settled_worker.channels.webhook import Webhook  # here and below: what speaks TLS is imported where it is used

            return Webhook(settings=settings, environ=environ, wall_us=wall_us, monotonic_us=clock.monotonic_us)
        case CommandChannel():
            return Command(settings=settings, environ=environ, monotonic_us=clock.monotonic_us)
        case EmailChannel():
            from settled_worker.channels.mail import Mail

            return Mail(settings=settings, environ=environ, monotonic_us=clock.monotonic_us)
        case LogChannel():
            return Log()


def make_channels(chosen: Mapping[str, AnyChannel], *, environ: Mapping[str, str], clock: Clock) -> dict[str, Channel]:
    """Return all channels by name, the log always among them."""
    return {name: make_channel(one, environ=environ, clock=clock) for name, one in {LOG: LogChannel(), **chosen}.items()}


def trouble_with(settings: AnyChannel, environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with a channel as far as this host can tell without sending anything, None where nothing is."""
    checks: list[Callable[[], object]] = []
    match settings:
        case WebhookChannel():
            from settled_worker.channels.deadline import verifying_context
            from settled_worker.channels.webhook import signing_key

            checks = [lambda: signing_key(_secret(settings.secret, environ)), lambda: verifying_context(settings.ca_file)]
        case CommandChannel():
            path = Path(settings.command[0])
            if not path.is_file() or not os.access(path, os.X_OK):
                return f"{path} is no file that may be executed here"
        case EmailChannel():
            from settled_worker.channels.deadline import verifying_context

            checks = [lambda: verifying_context(settings.ca_file)]
            if settings.password is not None:
                password = settings.password
                checks.append(lambda: _secret(password, environ))
        case LogChannel():
            pass
    for check in checks:
        try:
            check()
        except (DeliveryFailedError, OSError) as error:
            return safe_str(error)
    return None


def _secret(where: SecretSettings, environ: Mapping[str, str]) -> str:
    return read_secret(where, environ)
