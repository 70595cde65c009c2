"""What an attacker writes into an ID, and a secret that stands there, on the way through each channel to what is received."""

import json
import re
from collections.abc import Callable
from email.header import decode_header, make_header
from pathlib import Path
from typing import Any

import pytest

from settled import App
from settled.core.text import make_redactor
from settled.steps.escalate import route
from settled_worker.channels import Message
from tests.worker.harness import Hand, declare, timed_out
from tests.worker.receivers import executable, http_receiver, smtp_server
from tests.worker.test_channels import command, mail, send, webhook
from tests.worker.test_ladder import deliver, plan

HOSTILE = "id-\x1b]0;owned\x07\x1b[2J\u202e\u2066\r\nBcc: eve@example.org\r\n\r\n-SECRET42-" + "x" * 300
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # what moves a cursor or turns a text; a line may end


@pytest.fixture
def hostile(app: App, hand: Callable[..., Hand]) -> Message:
    """A notification about an operation whose ID, arguments and error were written by somebody who means harm."""
    declare(app, operation_id=lambda a: a["id"], sensitive_fields=("card",))
    app.submit("pay", {"n": 1, "id": HOSTILE, "card": "4111111111111111"})
    worker = hand()
    error = "4111111111111111 " + "\x1b[31m" * 100_000
    worker.step(timed_out(worker.start(), app.shell.clock.now(), error_class="Boom", error_text=error))
    now_us = app.shell.clock.now().wall_us
    route(app.shell, plan(), make_redactor([re.compile("SECRET[0-9]+")]), now_us)
    (told,) = deliver(app)
    return Message(delivery_id=told.delivery_id, created_us=told.created_us, body=told.body or "")


def by_webhook(message: Message, folder: Path) -> str:
    with http_receiver() as receiver:
        send(webhook(receiver.url), message)
    ((headers, body),) = receiver.got
    assert not RAW.search("".join(headers.values()))
    return body.decode()


def by_mail(message: Message, folder: Path) -> str:
    with smtp_server() as box:
        send(mail(box.port, tls="none"), message)
    (got,) = box.mails
    assert got["Bcc"] is None and box.recipients == ["ops@example.org"]
    subject = str(make_header(decode_header(re.sub("\r\n(?= )", "", str(got["Subject"])))))  # long headers are folded
    payload: Any = got.get_payload(decode=True)
    return subject + "\n" + payload.decode().replace("\r\n", "\n")


def by_command(message: Message, folder: Path) -> str:
    send(command(executable(folder, "page", 'cat > "$1"'), str(folder / "got"), timeout_seconds=30), message)
    return (folder / "got").read_text()


@pytest.mark.promise("S129", part="the body of a webhook, a mail and the input of a command, from the ledger to what is received")
@pytest.mark.parametrize("receive", [by_webhook, by_mail, by_command])
def test_hostile_text_and_secrets_arrive_through_no_channel(
    receive: Callable[[Message, Path], str], hostile: Message, tmp_path: Path
) -> None:
    got = receive(hostile, tmp_path)
    assert not RAW.search(got), got
    assert "SECRET42" not in got and "4111111111111111" not in got and "Boom" not in got
    assert len(got) < 5000
    body = json.loads(next(line for line in got.splitlines() if line.startswith("{")))
    assert body["delivery_id"] == hostile.delivery_id and "\\x1b" in body["incident"]["operation_id"]
    assert body["next"] == "settled quarantine list"
