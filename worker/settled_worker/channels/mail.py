"""Mail a notification over SMTP: encrypted before anything is said, the Message-ID the same at every try."""

import smtplib
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from settled.config.escalation import EmailChannel
from settled.core.limits import DEFAULTS
from settled.core.moment import SECOND_US
from settled.core.text import one_line, safe_str
from settled.logs import get_log
from settled_worker.channels.deadline import connect, verifying_context, wrap
from settled_worker.channels.left import Left, time_left
from settled_worker.channels.message import DeliveryFailedError, Message
from settled_worker.channels.secrets import read_secret

log = get_log("settled.escalation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One SMTP server and the people behind it."""

    settings: EmailChannel
    environ: Mapping[str, str]
    monotonic_us: Callable[[], int]

    def send(self, message: Message) -> None:
        """Hand one mail to the server. Raises DeliveryFailedError where it takes it for nobody."""
        chosen = self.settings
        password = None if chosen.password is None else read_secret(chosen.password, self.environ)
        try:
            refused = self._hand_over(written(message, chosen), password, time_left(self.monotonic_us, chosen.timeout_seconds))
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise DeliveryFailedError(f"the mail server did not take it: {type(error).__name__}: {_said(error)}") from error
        if refused:  # the others have it: sending again for the sake of a wrong address would reach them again and again
            log.warning("channel.recipients_refused", delivery_id=message.delivery_id, recipients=sorted(refused))

    def _hand_over(self, mail: EmailMessage, password: str | None, left: Left) -> Mapping[str, Any]:
        chosen = self.settings
        context = None if chosen.tls == "none" else verifying_context(chosen.ca_file)
        client = _Client(chosen.host, left, context if chosen.tls == "implicit" else None)
        try:
            client.connect(chosen.host, chosen.port)
            if chosen.tls == "starttls" and context is not None:
                client.start_tls(context)
            if chosen.username is not None and password is not None:
                client.login(chosen.username, password)
            refused = client.send_message(mail)
            _farewell(client)
            return refused
        finally:
            client.close()


class _Client(smtplib.SMTP):
    """An SMTP client whose connection has one end for everything."""

    def __init__(self, name: str, left: Left, context: ssl.SSLContext | None) -> None:
        super().__init__(local_hostname="localhost")  # the name of this host is nobody's business, and looking it up may hang
        self._name, self._left, self._context = name, left, context
        self._host = name

    def _get_socket(self, host: str, port: int, timeout: object) -> Any:
        plain = connect(host, port, self._left)
        if self._context is None:
            return plain
        try:
            return wrap(self._context, plain, host, self._left)
        except BaseException:
            plain.close()
            raise

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Encrypt the connection. Raises SMTPException where the server does not offer it: nothing is sent in the clear."""
        self.sock.settimeout(self._left())  # type: ignore[union-attr]
        self.starttls(context=context)
        self.sock.left = self._left  # type: ignore[union-attr]


def written(message: Message, settings: EmailChannel) -> EmailMessage:
    """Return the mail: what happened, the next command, and all facts as JSON."""
    facts = message.facts()
    mail = EmailMessage()
    mail["Subject"] = one_line(f"[settled] {facts['text']}", DEFAULTS.notification_text_max)
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.recipients)
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.created_us // SECOND_US, UTC))
    mail["Message-ID"] = f"<{message.delivery_id}@settled.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Settled-Delivery-Id"] = message.delivery_id
    digest = facts.get("digest") or {}
    named = "".join(f"  {one}\n" for one in digest.get("operation_ids", []))
    groups = "".join(f"  {one['count']} x {one['contract']} ({one['reason']}), {one['risk']} risk\n" for one in digest.get("groups", []))
    mail.set_content(f"{facts['text']}\n\n{groups}{named}Next: {facts['next']}\n\n{message.body}\n")
    return mail


def _farewell(client: smtplib.SMTP) -> None:
    """Say QUIT. The mail is taken already, whatever the server makes of it."""
    with suppress(OSError, smtplib.SMTPException):
        client.quit()


def _said(error: Exception) -> str:
    """Return what went wrong. An answer to a login is left out: servers have been seen to repeat what they were given."""
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"login refused ({error.smtp_code})"
    return safe_str(error)
