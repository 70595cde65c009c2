"""A small real destination over HTTP with a ledger of its own in SQLite: it commits before, after or late, loses, hides and forgets keys.

    python destination.py LEDGER MARKS

Prints its port when it is ready. POST / {reference, key, do, hold, …} is a request for an effect; GET /REFERENCE?lag=SECONDS
is what a reader sees; GET / is the truth. A held request waits for the file MARKS/go. Ends with its standard input.
"""

import json
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

MARKS = Path(sys.argv[2])
HOLD_SECONDS_MAX = 60.0


class Ledger:
    """What was asked for and what was done, in one file."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.execute("CREATE TABLE arrival (reference TEXT, at REAL)")
        self._file.execute("CREATE TABLE effect (reference TEXT, key TEXT, at REAL)")
        self.pending: Counter[str] = Counter()

    def arrived(self, reference: str) -> int:
        """Note one request; return the how-manieth it is."""
        with self._lock:
            self.pending[reference] += 1
            self._file.execute("INSERT INTO arrival VALUES (?, ?)", (reference, time.monotonic()))
            return int(self._file.execute("SELECT count(*) FROM arrival WHERE reference = ?", (reference,)).fetchone()[0])

    def over(self, reference: str) -> None:
        with self._lock:
            self.pending[reference] -= 1

    def commit(self, reference: str, key: str | None, key_seconds: float) -> None:
        """Do the effect, unless its key did it within the time for which keys are remembered."""
        with self._lock:
            since = time.monotonic() - key_seconds
            same = "SELECT count(*) FROM effect WHERE reference = ? AND key = ? AND at >= ?"
            if key is None or not self._file.execute(same, (reference, key, since)).fetchone()[0]:
                self._file.execute("INSERT INTO effect VALUES (?, ?, ?)", (reference, key, time.monotonic()))

    def seen(self, reference: str, lag: float) -> dict[str, Any]:
        with self._lock:
            visible = "SELECT count(*) FROM effect WHERE reference = ? AND at <= ?"
            found = self._file.execute(visible, (reference, time.monotonic() - lag)).fetchone()[0]
            return {"effects": found, "pending": self.pending[reference]}

    def truth(self) -> dict[str, dict[str, int]]:
        with self._lock:
            return {
                table: dict(self._file.execute(f"SELECT reference, count(*) FROM {table} GROUP BY reference").fetchall())
                for table in ("arrival", "effect")
            }


class Request(BaseHTTPRequestHandler):
    """One request. HTTP/1.0: the answer ends with the connection."""

    ledger: Ledger

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        reference, asked = parts.path.strip("/"), parse_qs(parts.query)
        self.answer(self.ledger.seen(reference, float(asked.get("lag", ["0"])[0])) if reference else self.ledger.truth())

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reference, hold = order["reference"], order.get("hold")
        first = self.ledger.arrived(reference) == 1
        wait_for_go(f"arrived-{reference}", hold == "before")
        do = order["do"] if first else "commit"
        commit = (reference, order.get("key"), order.get("key_seconds", 3600.0))
        if do == "commit":
            self.ledger.commit(*commit)
        elif do == "late":  # nobody who asks is told of it before it is done
            timer = threading.Timer(order["late_seconds"], self.ledger.commit, commit)
            timer.daemon = True
            timer.start()
        self.ledger.over(reference)
        if do == "commit":
            wait_for_go(f"committed-{reference}", hold == "after")
            self.answer({"done": reference})
        # Else the connection ends without an answer.

    def answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass  # whoever asked is dead

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def wait_for_go(mark: str, is_held: bool) -> None:
    (MARKS / mark).touch()
    until = time.monotonic() + HOLD_SECONDS_MAX
    while is_held and not (MARKS / "go").exists() and time.monotonic() < until:
        time.sleep(0.005)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that was killed is what this is for."""


if __name__ == "__main__":
    Request.ledger = Ledger(sys.argv[1])
    server = Server(("127.0.0.1", 0), Request)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    while os.read(0, 1024):
        pass
