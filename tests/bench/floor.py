"""The floor: what a plain driver of SQLite allows with the same promises, and not a line more.

It too writes a row and an event for submission, dispatch and outcome, dispatch before the call and outcome after it, and syncs
every commit. It checks nothing, recovers nothing and proves nothing: the distance to it is what the product costs.
"""

import importlib
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

BELL = "bell"
_SCHEMA = """
CREATE TABLE effect(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, state TEXT NOT NULL, arguments TEXT NOT NULL, output TEXT,
                    attempt INTEGER NOT NULL DEFAULT 0, owner TEXT, at REAL NOT NULL) STRICT;
CREATE INDEX waiting ON effect(id) WHERE state = 'prepared';
CREATE TABLE event(effect INTEGER NOT NULL, sequence INTEGER NOT NULL, type TEXT NOT NULL, at REAL NOT NULL, data TEXT,
                   PRIMARY KEY(effect, sequence)) STRICT, WITHOUT ROWID;
"""
_SUBMIT = "INSERT INTO effect(key, state, arguments, at) VALUES(?, 'prepared', ?, ?)"
_CLAIM = """UPDATE effect SET state = 'dispatched', attempt = attempt + 1, owner = 'me', at = ?
            WHERE id IN (SELECT id FROM effect WHERE state = 'prepared' ORDER BY id LIMIT ?) RETURNING id, arguments"""
_END = "UPDATE effect SET state = 'confirmed', output = ?, owner = NULL, at = ? WHERE id = ? AND state = 'dispatched'"
_EVENT = "INSERT INTO event(effect, sequence, type, at, data) VALUES(?, ?, ?, ?, ?)"


def driver() -> Any:
    """Return the driver that the product uses where it can, so that both rows come from one SQLite."""
    try:
        return importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return importlib.import_module("sqlite3")


def ask(path: Path, sql: str) -> Any:
    """Return the first value of a query, over a read-only connection of its own."""
    connection = driver().connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute(sql).fetchone()[0]
    finally:
        connection.close()


class Floor:
    """One process' hold on the floor's database in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "floor.db"
        self._connection = driver().connect(self.path, isolation_level=None, timeout=30, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._ringer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ringer.setblocking(False)

    def prepare(self) -> None:
        """Make the tables."""
        self._connection.executescript(_SCHEMA)

    def submit(self, arguments: dict[str, Any]) -> str:
        """Store one effect; return its key."""
        self._store([arguments])
        self._ring()
        return str(arguments["order"])

    def submit_many(self, effects: Sequence[dict[str, Any]]) -> None:
        """Store effects in one transaction."""
        self._store(effects)

    def wait(self, key: str) -> None:
        """Return when the effect is done."""
        while self._connection.execute("SELECT state FROM effect WHERE key = ?", (key,)).fetchone()[0] != "confirmed":
            time.sleep(0.0005)

    def do(self, arguments: dict[str, Any], handler: Callable[[dict[str, Any]], object]) -> None:
        """Record, call, record."""
        run, now = self._connection.execute, time.time()
        run("BEGIN IMMEDIATE")
        row = run(_SUBMIT, (arguments["order"], json.dumps(arguments), now)).lastrowid
        run("UPDATE effect SET state = 'dispatched', attempt = 1, owner = 'me' WHERE id = ?", (row,))
        self._connection.executemany(_EVENT, [(row, 1, "submitted", now, None), (row, 2, "dispatched", now, '{"owner":"me"}')])
        run("COMMIT")
        output = json.dumps(handler(arguments))
        run("BEGIN IMMEDIATE")
        run(_END, (output, time.time(), row))
        run(_EVENT, (row, 3, "returned", time.time(), None))
        run("COMMIT")

    def work(self, slots: int, handler: Callable[[dict[str, Any]], object]) -> None:
        """Dispatch for ever: each commit carries the outcomes that have come and the next claims."""
        ended: deque[tuple[str, float, int]] = deque()
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.bind(os.fspath(self.root / BELL))
        running = 0

        def call(row: int, arguments: str) -> None:
            output = json.dumps(handler(json.loads(arguments)))
            ended.append((output, time.time(), row))
            if len(ended) == 1:
                self._ring()

        with ThreadPoolExecutor(slots) as pool:
            while True:
                batch = [ended.popleft() for _ in range(len(ended))]
                running -= len(batch)
                claimed = self._step(batch, slots - running)
                running += len(claimed)
                for row, arguments in claimed:
                    pool.submit(call, row, arguments)
                if not ended:
                    self._sleep(bell)

    def _step(self, batch: list[tuple[str, float, int]], room: int) -> list[tuple[int, str]]:
        now = time.time()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_END, batch)
        self._connection.executemany(_EVENT, [(row, 3, "returned", at, None) for _, at, row in batch])
        claimed: list[tuple[int, str]] = self._connection.execute(_CLAIM, (now, room)).fetchall() if room else []
        self._connection.executemany(_EVENT, [(row, 2, "dispatched", now, '{"owner":"me"}') for row, _ in claimed])
        self._connection.execute("COMMIT")
        return claimed

    def _store(self, effects: Sequence[dict[str, Any]]) -> None:
        now = time.time()
        self._connection.execute("BEGIN IMMEDIATE")
        for one in effects:
            row = self._connection.execute(_SUBMIT, (one["order"], json.dumps(one), now)).lastrowid
            self._connection.execute(_EVENT, (row, 1, "submitted", now, None))
        self._connection.execute("COMMIT")

    def _ring(self) -> None:
        with suppress(OSError):  # nobody listens, or it rings already
            self._ringer.sendto(b"!", os.fspath(self.root / BELL))

    @staticmethod
    def _sleep(bell: socket.socket) -> None:
        bell.settimeout(1.0)
        with suppress(OSError):
            bell.recv(16)
            bell.setblocking(False)
            while bell.recv(16):
                pass
