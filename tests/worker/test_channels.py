"""Each channel against real receivers that fail, hang, drip, lie and answer late."""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from settled.clock import SystemClock
from settled.config.escalation import AnyChannel
from settled.steps.telling import test_body as body_of_a_test
from settled_worker.channels import DeliveryFailedError, Message, make_channel, trouble_with
from tests.conftest import eventually
from tests.lib.execution.outside import is_alive
from tests.worker.receivers import Certificates, certificates, executable, http_receiver, smtp_server

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "escalation.md"
SECRET = "whsec_bXkgc2VjcmV0"
ENOUGH_SECONDS = 30.0  # a limit of a second that is kept is far below; one that is not kept has no end


def message(delivery_id: str = "a" * 32) -> Message:
    return Message(delivery_id=delivery_id, created_us=1_800_000_000_000_000, body=body_of_a_test(delivery_id, "c", 1_800_000_000_000_000))


def send(settings: dict[str, Any], sent: Message | None = None, **environ: str) -> None:
    chosen: Any = TypeAdapter(AnyChannel).validate_python(settings)
    make_channel(chosen, environ={"HOOK": SECRET, **environ}, clock=SystemClock()).send(sent or message())


def webhook(url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "webhook", "url": url, "secret": {"env": "HOOK"}, "timeout_seconds": 1, **more}


@contextlib.contextmanager
def fails(why: str | None = None) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(DeliveryFailedError, match=why) as failed:
        yield
    assert time.monotonic() - began < ENOUGH_SECONDS
    assert SECRET not in str(failed.value)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


# ------------------------------------------------------------------ webhook


def verifier() -> Callable[..., str]:
    """The code of the document, as a reader copies it."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    verify: Callable[..., str] = found["verify"]
    return verify


@pytest.mark.promise("S64", part="a webhook is signed, and the documented code verifies it")
def test_the_code_of_the_document_verifies_a_delivery_and_nothing_else() -> None:
    with http_receiver() as receiver:
        send(webhook(receiver.url))
    ((headers, body),) = receiver.got
    verify, now = verifier(), time.time()
    assert verify(b"my secret", headers, body, now) == "a" * 32
    assert json.loads(body)["delivery_id"] == "a" * 32
    for wrong in (
        lambda: verify(b"another secret", headers, body, now),
        lambda: verify(b"my secret", headers, body + b" ", now),
        lambda: verify(b"my secret", headers, body, now + 301),
        lambda: verify(b"my secret", {**headers, "webhook-id": "b" * 32}, body, now),
        lambda: verify(b"my secret", {**headers, "webhook-timestamp": str(int(now) - 1)}, body, now),
        lambda: verify(b"my secret", {**headers, "webhook-signature": "v1,"}, body, now),
    ):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("manner", ["fail", "redirect", "garbage", "close", "hang", "drip", "late", "heads"])
def test_whatever_is_no_answer_in_time_is_no_delivery(manner: str) -> None:
    with http_receiver(manner) as receiver, fails():
        send(webhook(receiver.url))
    assert len(receiver.got) == 1  # a redirect is not followed


def test_an_endless_answer_is_not_read() -> None:
    with http_receiver("endless") as receiver:
        send(webhook(receiver.url))


def test_nobody_listens_and_no_such_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with fails("refused"):
        send(webhook(f"http://127.0.0.1:{port}/"))


def test_tls_is_verified_by_certificate_and_by_name(ours: Certificates, tmp_path: Path) -> None:
    with http_receiver(context=ours.context) as receiver:
        send(webhook(receiver.url, ca_file=ours.file))
        with fails("CERTIFICATE_VERIFY_FAILED"):
            send(webhook(receiver.url))
        receiver.host = "localhost"
        with fails("CERTIFICATE_VERIFY_FAILED"):
            send(webhook(receiver.url, ca_file=ours.file))
    assert len(receiver.got) == 1


def test_a_peer_that_never_ends_the_handshake_is_given_up(ours: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, fails():
        send(webhook(f"https://127.0.0.1:{silent.getsockname()[1]}/", ca_file=ours.file))


# ------------------------------------------------------------------ secrets


def test_a_secret_comes_from_a_file_a_variable_or_a_credential(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text(SECRET + "\n")
    with http_receiver() as receiver:
        for where in ({"file": str(tmp_path / "hook")}, {"env": "HOOK"}, {"credential": "hook"}):
            send(webhook(receiver.url, secret=where), CREDENTIALS_DIRECTORY=str(tmp_path))
    for headers, body in receiver.got:
        verifier()(b"my secret", headers, body, time.time())
    assert len(receiver.got) == 3


@pytest.mark.parametrize("where", [{"file": "/nowhere"}, {"env": "NOT_SET"}, {"credential": "hook"}])
def test_a_missing_secret_is_named_and_nothing_is_sent(where: dict[str, str]) -> None:
    with http_receiver() as receiver, fails("secret|credential"):
        send(webhook(receiver.url, secret=where))
    assert receiver.got == []


# ------------------------------------------------------------------ mail


def mail(port: int, **more: Any) -> dict[str, Any]:
    facts = {"host": "127.0.0.1", "port": port, "sender": "settled@example.org", "recipients": ["ops@example.org"]}
    return {"kind": "email", "timeout_seconds": 2, **facts, **more}


@pytest.mark.promise("S64", part="mail over STARTTLS, its Message-ID the delivery ID")
def test_a_mail_goes_out_encrypted_and_names_the_delivery(ours: Certificates) -> None:
    login = {"username": "settled", "password": {"env": "MAIL"}, "ca_file": ours.file}
    with smtp_server(ours.context, password="hunter2") as box:
        send(mail(box.port, **login), MAIL="hunter2")
        send(mail(box.port, **login), MAIL="hunter2")
        with fails("login refused"):
            send(mail(box.port, **login), MAIL="wrong")
    assert [one["Message-ID"] for one in box.mails] == [f"<{'a' * 32}@settled.invalid>"] * 2
    assert box.mails[0]["Subject"].startswith("[settled] test of the channel")
    assert '"kind":"test"' in box.mails[0].get_payload(decode=True).decode()  # type: ignore[union-attr]


def test_nothing_is_mailed_in_the_clear_or_to_a_stranger(ours: Certificates) -> None:
    with smtp_server() as box, fails("STARTTLS"):
        send(mail(box.port, ca_file=ours.file))
    with smtp_server(ours.context) as strange, fails("CERTIFICATE_VERIFY_FAILED"):
        send(mail(strange.port))
    assert box.mails == strange.mails == []


def test_a_wrong_address_keeps_no_mail_from_the_others() -> None:
    with smtp_server() as box:
        send(mail(box.port, tls="none", recipients=["nobody@example.org", "ops@example.org"]))
        assert box.recipients == ["ops@example.org"]
        with fails("no such user"):
            send(mail(box.port, tls="none", recipients=["nobody@example.org"]))


def test_a_mail_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, fails():
        send(mail(silent.getsockname()[1], tls="none"))


def test_a_hostile_text_adds_no_header(ours: Certificates) -> None:
    hostile = Message(delivery_id="b" * 32, created_us=0, body=json.dumps({"text": "x\r\nBcc: eve@example.org", "next": "n"}))
    with smtp_server() as box:
        send(mail(box.port, tls="none"), hostile)
    assert box.mails[0]["Bcc"] is None and "\n" not in box.mails[0]["Subject"]


# ------------------------------------------------------------------ command


def command(path: str, *arguments: str, **more: Any) -> dict[str, Any]:
    return {"kind": "command", "command": [path, *arguments], "timeout_seconds": 1, **more}


@pytest.mark.promise("S64", part="a command gets the notification on its standard input")
def test_a_command_gets_json_and_nothing_of_our_environment(tmp_path: Path) -> None:
    script = executable(tmp_path, "page", 'cat > "$1"; env > "$1.env"; ls -l /proc/self/fd > "$1.fd"')
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        send(command(script, str(tmp_path / "got")), SECRET_OF_THE_WORKER="hunter2", PATH="/usr/bin:/bin")
    assert json.loads((tmp_path / "got").read_text())["kind"] == "test"
    environ = (tmp_path / "got.env").read_text()
    assert "hunter2" not in environ and SECRET not in environ and f"SETTLED_DELIVERY_ID={'a' * 32}" in environ
    assert str(tmp_path / "lock") not in (tmp_path / "got.fd").read_text()  # our locks would look held for ever


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    with fails("it ended with code 3: no line to the pager"):
        send(command(executable(tmp_path, "page", "echo no line to the pager >&2; exit 3")))
    with fails("cannot be run"):
        send(command(str(tmp_path / "missing")))
    flood = executable(tmp_path, "flood", "head -c 5000000 /dev/zero | tr '\\0' x >&2; exit 1")
    with pytest.raises(DeliveryFailedError) as failed:
        send(command(flood, timeout_seconds=20))
    assert "ended with code 1" in str(failed.value) and len(str(failed.value)) < 2000


@pytest.mark.parametrize("ends", [False, True])
def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path: Path, ends: bool) -> None:
    pids = tmp_path / "pids"
    script = executable(tmp_path, "page", f'sleep 1000 & echo $! >> "$1"; echo $$ >> "$1"; {"exit 0" if ends else "wait"}')
    with contextlib.nullcontext() if ends else fails("killed"):
        send(command(script, str(pids), timeout_seconds=10 if ends else 1))
    started = [int(pid) for pid in pids.read_text().split()]
    eventually(lambda: not [pid for pid in started if is_alive(pid)])
    assert len(started) == 2


def test_a_command_that_ignores_its_input_and_every_signal_is_killed(tmp_path: Path) -> None:
    script = executable(tmp_path, "page", "trap '' TERM HUP INT; exec 0<&-; while :; do sleep 0.1; done")
    with fails("killed"):
        send(command(script))


# ------------------------------------------------------------------ before the night


def test_what_is_wrong_with_a_channel_is_known_beforehand(tmp_path: Path, ours: Certificates) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(AnyChannel)

    def trouble(settings: dict[str, Any]) -> str | None:
        return trouble_with(adapter.validate_python(settings), {"HOOK": SECRET})

    assert trouble(webhook("https://example.org/", ca_file=ours.file)) is None
    assert trouble({"kind": "log"}) is None
    assert trouble(command("/bin/sh")) is None
    for wrong, why in (
        (webhook("https://example.org/", secret={"env": "NOT_SET"}), "NOT_SET"),
        (webhook("https://example.org/", ca_file=str(tmp_path / "none.pem")), "No such file"),
        (command(str(tmp_path)), "no file that may be executed"),
        (mail(25, username="a", password={"file": str(tmp_path / "none")}), "cannot be read"),
    ):
        assert why in (trouble(wrong) or "")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (webhook("http://example.org/"), "must be https"),
        (webhook("http://127.0.0.1.example.org/"), "must be https"),
        (webhook("ftp://example.org/"), "must be an https URL"),
        (webhook("https://user:pw@example.org/"), "must not hold a user name"),
        (webhook("https://example.org/\r\nX: y"), "control characters"),
        (webhook("https://example.org/", secret="hunter2"), "secret"),
        (webhook("https://example.org/", secret={"env": "A", "file": "b"}), "exactly one of"),
        (webhook("https://example.org/", secret={"credential": "../x"}), "name of a credential"),
        (webhook("https://example.org/", timeout_seconds=61), "at most 60"),
        (command("page"), "absolute path"),
        (mail(25, tls="none", host="mail.example.org"), "tls must be starttls"),
        (mail(25, sender="a@b\nBcc: c@d"), "no plain address"),
        (mail(25, username="a"), "together"),
    ],
)
def test_an_unsafe_channel_is_refused_by_the_settings(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TypeAdapter(AnyChannel).validate_python(settings)
