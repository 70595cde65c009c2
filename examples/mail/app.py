"""Send a mail once: no key that anybody deduplicates on, and a Message-ID of our own by which the archive is searched.

A mail server does not refuse a second mail with the same Message-ID: it delivers both. So nothing may be repeated on a guess; the
probe looks for the Message-ID in the archive mailbox, where a copy of everything lands.
"""

import contextlib
import imaplib
import os
import smtplib
from collections.abc import Iterator
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

from settled import App, EffectRejected, NotSent, ProbeResult

app = App()  # which ledger: SETTLED_DATABASE, settled.toml or ./settled.db

CONTROL_ID = "<control@settled.example>"  # a mail that surely lies in the archive


def message_id_of(arguments: dict[str, Any]) -> str:
    return f"<notice-{arguments['notice']}@settled.example>"


@app.effect(
    name="send_notice",
    operation_id=lambda arguments: f"notice:{arguments['notice']}",
    provider_reference=message_id_of,
    risk="medium",
    timeout=10.0,
    kill_grace=0.5,
    probe_timeout=5.0,
    network_drain=timedelta(seconds=2),  # enough on one machine; keep the default of 120 s for a real network
    commit_horizon=timedelta(seconds=5),
    read_lag=timedelta(seconds=5),
)
def send_notice(arguments: dict[str, Any]) -> dict[str, Any]:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "agent@settled.example", arguments["to"], arguments["subject"]
    mail["Message-ID"] = message_id_of(arguments)
    mail.set_content(arguments["text"])
    host, _, port = os.environ["SMTP_ADDRESS"].partition(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=8) as server:
            server.send_message(mail)
    except ConnectionRefusedError as refusal:
        raise NotSent("nothing listens at the address of the mail server") from refusal
    except smtplib.SMTPRecipientsRefused as refusal:
        raise EffectRejected("the server takes no mail for this recipient") from refusal
    except smtplib.SMTPDataError as error:
        if 500 <= error.smtp_code < 600:
            raise EffectRejected(f"the server refused the mail for good: {error.smtp_code}") from error
        raise  # a 4xx after the data: some servers have kept it all the same
    return {"message_id": message_id_of(arguments)}


@send_notice.probe
def find_notice(arguments: dict[str, Any]) -> ProbeResult:
    wanted = message_id_of(arguments)
    with archive() as mailbox:
        found = search(mailbox, wanted)
        facts = {"source": "IMAP SEARCH HEADER Message-ID", "found": len(found)}
        if found:
            return ProbeResult.committed(reference=wanted, output={"message_id": wanted}, evidence=facts)
        healthy = bool(search(mailbox, CONTROL_ID))
    # Not terminal: a mail server may have accepted the mail and deliver it later; it has no way to say that it has not.
    return ProbeResult.not_committed(healthy=healthy, reference=wanted, evidence=facts)


@contextlib.contextmanager
def archive() -> Iterator[imaplib.IMAP4]:
    host, _, port = os.environ["IMAP_ADDRESS"].partition(":")
    with imaplib.IMAP4(host, int(port), timeout=4) as mailbox:
        mailbox.login("archive", "secret")
        mailbox.select("INBOX", readonly=True)
        yield mailbox


def search(mailbox: imaplib.IMAP4, message_id: str) -> list[bytes]:
    status, answer = mailbox.uid("SEARCH", "HEADER", "Message-ID", f'"{message_id}"')
    if status != "OK":
        raise RuntimeError(f"the archive answered {status}")
    return (answer[0] or b"").split()
