"""The App that the benchmark measures: effects that do nothing, in threads and in processes. SETTLED_DATABASE names its ledger.

Runner processes import this module by name, as they import a user's.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from settled import App, Effect, EffectContract
from tests.bench.measuring import FIRST_STARTED

Handler = Callable[[dict[str, Any]], object]
RUNNERS = 4

app = App()
_noted: set[str] = set()


def _note_first() -> None:
    """Leave the moment of the first call for the parent to read; every later one costs a look at a set."""
    database = os.environ["SETTLED_DATABASE"]
    if database in _noted:
        return
    _noted.add(database)
    written = Path(f"{database}.{os.getpid()}.first")
    written.write_text(str(time.monotonic_ns()))
    with suppress(FileExistsError):  # another runner was first
        os.link(written, Path(database).with_name(FIRST_STARTED))  # whole at once: whoever sees it reads it
    written.unlink()


def do_nothing(arguments: dict[str, Any]) -> dict[str, Any]:
    _note_first()
    return {"done": True, "order": arguments["order"]}


def sleep_10_ms(arguments: dict[str, Any]) -> dict[str, Any]:
    _note_first()
    time.sleep(0.010)
    return {"done": True, "order": arguments["order"]}


def lose(arguments: dict[str, Any]) -> None:
    """Leave an outcome that nobody knows."""
    raise OSError("the line went dead")


def occupy(arguments: dict[str, Any]) -> None:
    """Hold a runner for so long that every other one must be started too."""
    time.sleep(0.5)


def _declare(name: str, handler: Handler, isolation: str) -> Effect:
    return app.register(
        EffectContract(
            name=name,
            operation_id=lambda a: f"{name}:{a['order']}",
            provider_idempotency_key=lambda a: f"key:{a['order']}",
            provider_idempotency_guaranteed=name != "lost",
            unknown_outcome="keep_unknown" if name == "lost" else "quarantine",
            isolation=isolation,
            handler=handler,
        )
    )


EFFECTS = {
    "thread": _declare("thread", do_nothing, "thread"),
    "process": _declare("process", do_nothing, "process"),
    "sleep": _declare("sleep", sleep_10_ms, "thread"),
    "lost": _declare("lost", lose, "thread"),
    "occupy": _declare("occupy", occupy, "process"),
}
