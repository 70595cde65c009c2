"""Take part in a comparison of durable workers: what its harness wants to know about `settled`, and nothing else.

Promise: self-contained. It is loaded by file name into a harness that offers `adapters.base` and `lib`, and uses of the product
what its users use. Handlers run in threads; SETTLED_BENCH_ISOLATION=process runs them in runner processes, SETTLED_BENCH_SLOTS
overrides how many run at once.
"""

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

from adapters.base import Adapter, replicate, sqlite_scalar

RUNNER_NEEDS = ("SETTLED_BENCH_ROOT", "SETTLED_BENCH_HANDLER")  # by these a runner finds the memory that the harness reads
FILLED_FROM = 1_000_000_000  # row ids of copies, far above real ones


def declare(app, call, isolation):
    """Register the effect `charge`; without `call` it can only be submitted."""
    from settled import EffectContract

    return app.register(
        EffectContract(
            name="charge",
            operation_id=lambda a: f"{a['order']}:{a['t']}",
            provider_idempotency_key=lambda a: f"charge:{a['order']}:{a['t']}",
            provider_idempotency_guaranteed=True,
            isolation=isolation,
            handler=call,
        )
    )


def calling(handler):
    """Return the harness' handler as ours: it takes the arguments, and by name."""
    return lambda arguments: handler(arguments["i"], arguments)


class Settled(Adapter):
    """Dispatch recorded before, outcome after, both with chained events; every commit synced."""

    name = "settled"
    durability = "WAL, synchronous=FULL; chained events for submission, dispatch and outcome"
    caps = frozenset(["submit", "bulk", "e2e", "sleep", "latency", "inline", "scale", "idle"])
    imports = "settled"
    latency_samples = 200
    e2e_n = 20_000  # as many as the floor takes: fewer are over before the worker knows how short they are

    def __init__(self, root, dsn=None):
        super().__init__(root, dsn)
        self.db = str(self.root / "settled.db")
        self.isolation = os.environ.get("SETTLED_BENCH_ISOLATION", "thread")

    # -- the parent: plain SQL, it never has an App -------------------------
    def done(self):
        return sqlite_scalar(self.db, "SELECT coalesce(sum(count), 0) FROM tally WHERE status = 'confirmed'")

    def fill(self, n):
        one = "(SELECT min(id) FROM operation WHERE status = 'confirmed')"
        copy = {"operation": f"{FILLED_FROM} + ids.x"}
        tables: list[tuple[str, str | None, str, dict[str, Any]]] = [
            ("operation", "operation_id", f"SELECT * FROM operation WHERE id = {one}", {"id": f"{FILLED_FROM} + ids.x"})
        ]
        tables += [(name, None, f"SELECT * FROM {name} WHERE operation = {one}", copy) for name in ("payload", "event")]
        replicate(self.db, n, tables)

    # -- its own process ----------------------------------------------------
    def prepare(self):
        self._app().create_database()

    # -- callers ------------------------------------------------------------
    def open(self):
        self.app = self._app()
        self.effect = declare(self.app, None, "thread")
        self.app.engine()  # a host opens its ledger, and imports what that takes, before the first request comes

    def submit(self, i, args):
        return self.effect.submit({"i": i, **args})

    def submit_many(self, pairs):
        self.app.submit_many([(self.effect, {"i": i, **args}) for i, args in pairs])

    def wait(self, handle):
        return self.app.wait(handle.operation_id, timeout=60).result()

    # -- the worker -----------------------------------------------------------
    def work(self, handler, concurrency, ready):
        from settled.config.settings import Settings, WorkerSettings
        from settled.logs import configure_logs
        from settled_worker.worker import Worker

        configure_logs("json", "info", sys.stderr)  # as a service would: one line a batch
        app, reference = self._app(), "none:app"
        if self.isolation == "process":
            app, reference = self._importable(handler)
        else:
            declare(app, calling(handler), self.isolation)
        slots = int(os.environ.get("SETTLED_BENCH_SLOTS", concurrency))
        worker = Worker(app, Settings(worker=WorkerSettings(slots=slots)), app_reference=reference)
        ready()
        worker.run()

    # -- inline -----------------------------------------------------------------
    def inline(self, handler):
        app = self._app()
        effect = declare(app, calling(handler), "thread")
        return lambda i, args: app.execute(effect, {"i": i, **args}).result()

    # -- within -----------------------------------------------------------------
    def _app(self):
        from settled import App

        return App(self.db)

    def _importable(self, handler):
        """Return this file's own app, and the name by which runners import the same."""
        harness = str(Path(sys.modules["lib"].__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), harness, os.environ.get("PYTHONPATH", "")])
        os.environ.update(zip(RUNNER_NEEDS, (str(self.root), handler.kind), strict=True))
        app = self._app()
        declare_in_runner(app, self.root, handler.kind)
        return app, f"{Path(__file__).stem}:app"


_handler: Any = None


def charge(arguments):
    """The handler in a runner process: several of them count in the same memory, one at a time."""
    shared = _handler.shared
    fcntl.flock(shared.gate, fcntl.LOCK_EX)
    try:
        shared._n = shared.started
        return _handler(arguments["i"], arguments)
    finally:
        fcntl.flock(shared.gate, fcntl.LOCK_UN)


def declare_in_runner(app, root, kind):
    """Register the effect for process isolation, with the handler at the top of this module."""
    from lib import Shared, make_handler

    global _handler
    shared = Shared(root / "shared")
    shared.gate = (root / "hits").open("w")
    _handler = make_handler(kind, shared)
    _handler.shared = shared
    declare(app, charge, "process")


if all(name in os.environ for name in RUNNER_NEEDS):  # a runner imports this file
    app = Settled(os.environ[RUNNER_NEEDS[0]])._app()
    declare_in_runner(app, Path(os.environ[RUNNER_NEEDS[0]]), os.environ[RUNNER_NEEDS[1]])
