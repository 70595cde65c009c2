"""The mail server as `settled certify` needs it: SMTP in (aiosmtpd), a folder of mails, and just enough IMAP to search it.

    settled certify app:send_notice --sandbox sandbox:Mail --quick --output certificate.html

The IMAP side is a few lines of our own that know LOGIN, SELECT, UID SEARCH and LOGOUT: it shows how the probe behaves when searches fail
or lag, and nothing about Dovecot, Exchange or anybody else's. Mails are counted in the folder.
"""

import asyncio
import contextlib
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Mapping
from email import message_from_bytes
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from app import CONTROL_ID, message_id_of

from settled.testing import Fault, ReadFault, Sandbox, Trouble


class Post:
    """The truth: mails by Message-ID with the time of their arrival, and the troubles that wait for them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.lock = folder, threading.RLock()
        self.mails: list[tuple[str, float]] = [(CONTROL_ID, 0.0)]
        self.troubles: dict[str, tuple[Trouble, float, float, float]] = {}  # with late, lag and hold seconds
        self.received: Counter[str] = Counter()
        self.undecided = 0

    def deliver(self, message_id: str, content: bytes) -> None:
        with self.lock:
            (self._folder / f"mail-{len(self.mails):05d}.eml").write_bytes(content)
            self.mails.append((message_id, time.monotonic()))

    def count(self, message_id: str) -> int:
        with self.lock:
            return sum(known == message_id for known, _ in self.mails)

    def search(self, message_id: str) -> int | None:
        """Return how many mails a reader is shown; None: the connection is cut."""
        with self.lock:
            trouble, _, lag, _ = self.troubles.get(message_id, (Trouble("none"), 0.0, 0.0, 0.0))
            until = time.monotonic() - (lag if trouble.reads is ReadFault.STALE else 0.0)
            if trouble.reads is ReadFault.UNAVAILABLE:
                return None
            if trouble.reads in (ReadFault.LYING, ReadFault.FALSE_NEGATIVE):
                return 0
            return sum(known == message_id and arrived <= until for known, arrived in self.mails)


class Receiver:
    """The SMTP side."""

    def __init__(self, post: Post) -> None:
        self._post = post

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message_id = str(message_from_bytes(envelope.content)["Message-ID"])
        post = self._post
        with post.lock:
            post.received[message_id] += 1
            trouble, late, _, hold = post.troubles.get(message_id, (Trouble("none"), 0.0, 0.0, 0.0))
            fault = trouble.call if post.received[message_id] == 1 else Fault.NONE
            post.undecided += 1
        try:
            await asyncio.sleep(hold if post.received[message_id] == 1 else 0)
            return await self._act(server, fault, late, message_id, envelope.content)
        finally:
            if fault is not Fault.COMMIT_LATE:
                with post.lock:
                    post.undecided -= 1

    async def _act(self, server: Any, fault: Fault, late: float, message_id: str, content: bytes) -> str:
        if fault is Fault.REJECT:
            return "550 5.7.1 refused"
        if fault is Fault.COMMIT_LATE:
            threading.Timer(late, self._late, (message_id, content)).start()
        elif fault is not Fault.FAIL_BEFORE_COMMIT:
            for _ in range(2 if fault is Fault.COMMIT_TWICE else 1):
                self._post.deliver(message_id, content)
        if fault in (Fault.LOSE_ANSWER, Fault.FAIL_BEFORE_COMMIT, Fault.COMMIT_LATE):
            server.transport.abort()
        if fault is Fault.HANG:
            await asyncio.sleep(60)
        return {Fault.ERROR_AFTER_COMMIT: "451 4.3.0 try again later", Fault.MALFORMED_ANSWER: "25"}.get(fault, "250 2.0.0 kept")

    def _late(self, message_id: str, content: bytes) -> None:
        self._post.deliver(message_id, content)
        with self._post.lock:
            self._post.undecided -= 1


class Archive(socketserver.StreamRequestHandler):
    """The IMAP side: one connection."""

    post: Post

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a caller that is killed is what this is for
            self._serve()

    def _serve(self) -> None:
        self._say("* OK a few lines of IMAP")
        while line := self.rfile.readline().decode().strip():
            tag, _, command = line.partition(" ")
            verb = command.upper()
            if verb.startswith("CAPABILITY"):
                self._say("* CAPABILITY IMAP4rev1")
            elif verb.startswith(("SELECT", "EXAMINE")):
                self._say("* 1 EXISTS")
            elif verb.startswith("UID SEARCH HEADER"):
                found = self.post.search(command.rpartition(" ")[2].strip('"'))
                if found is None:
                    return
                self._say("* SEARCH" + "".join(f" {number}" for number in range(1, found + 1)))
            elif verb.startswith("LOGOUT"):
                self._say("* BYE")
            self._say(f"{tag} OK done")

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


class Mail(Sandbox):
    """Both sides, each on a free port of this machine."""

    troubles = frozenset(
        {"none", "rejected", "lost before", "answer lost", "error after", "committed late", "answer held", "reads down", "reads stale"}
        | {"committed twice", "search lies"}
    )

    def open(self, folder: Path) -> Mapping[str, str]:
        self._post = Post(folder)
        self._smtp = Controller(Receiver(self._post), hostname="127.0.0.1", port=free_port())
        self._smtp.start()
        handler = type("ArchiveOfThis", (Archive,), {"post": self._post})
        self._imap = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        self._imap.daemon_threads = True
        threading.Thread(target=self._imap.serve_forever, args=(0.05,), daemon=True).start()
        return {"SMTP_ADDRESS": f"127.0.0.1:{self._smtp.port}", "IMAP_ADDRESS": f"127.0.0.1:{self._imap.server_address[1]}"}

    def close(self) -> None:
        self._smtp.stop()
        self._imap.shutdown()
        self._imap.server_close()

    def arguments(self, case: str) -> dict[str, Any]:
        return {"notice": case, "to": "customer@settled.example", "subject": "Your refund", "text": "It is on its way."}

    def arm(self, arguments: dict[str, Any], trouble: Trouble, *, held: bool = False) -> None:
        with self._post.lock:
            hold = self.late_seconds if held else 0.0
            self._post.troubles[message_id_of(arguments)] = (trouble, self.late_seconds, self.lag_seconds, hold)

    def reached(self, arguments: dict[str, Any], what: str) -> bool:
        wanted = message_id_of(arguments)
        return bool(self._post.received[wanted]) if what == "received" else self._post.count(wanted) > 0

    def count(self, arguments: dict[str, Any]) -> int:
        return self._post.count(message_id_of(arguments))

    def undecided(self) -> int:
        with self._post.lock:
            return self._post.undecided


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
