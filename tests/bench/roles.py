"""Play one role of one side in a process of its own: `python -m tests.bench.roles SIDE ROLE ROOT OPTIONS`.

Promise: prints one line of JSON on standard output, where the role has an end. `work` has none; it is ended by a signal.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.bench.measuring import an_effect, each_for, quantile_ms, rate

Figures = dict[str, float]
BULK = 100


class Side(Protocol):
    """What both the product and the floor can do."""

    def prepare(self) -> None: ...
    def submit(self, arguments: dict[str, Any]) -> Any: ...
    def submit_many(self, effects: Sequence[dict[str, Any]]) -> None: ...
    def wait(self, handle: Any) -> None: ...


class Product:
    """The product by its public surface. `kind` names one of tests.bench.effects."""

    def __init__(self, root: Path, kind: str) -> None:
        os.environ["SETTLED_DATABASE"] = str(root / "settled.db")
        from tests.bench import effects  # here, for the ledger's name must be set before

        self.app, self.kind = effects.app, kind
        self.effect = effects.EFFECTS[kind]

    def prepare(self) -> None:
        self.app.create_database()

    def submit(self, arguments: dict[str, Any]) -> Any:
        return self.effect.submit(arguments).operation_id

    def submit_many(self, effects: Sequence[dict[str, Any]]) -> None:
        self.app.submit_many([(self.effect, one) for one in effects])

    def submit_later(self, effects: Sequence[dict[str, Any]], delay_seconds: float) -> None:
        self.app.submit_many([{"contract": self.effect, "arguments": one, "delay": delay_seconds} for one in effects])

    def wait(self, handle: Any) -> None:
        self.app.wait(handle, timeout=60).result()

    def do(self, arguments: dict[str, Any]) -> None:
        self.app.execute(self.effect, arguments).result()

    def work(self, slots: int) -> None:
        from settled.config.settings import Settings, WorkerSettings
        from settled.logs import configure_logs
        from settled_worker.worker import Worker
        from tests.bench.effects import RUNNERS

        configure_logs("json", "info", sys.stderr)
        settings = Settings(worker=WorkerSettings(slots=slots, process_runners=RUNNERS))
        self.app.reference = "tests.bench.effects:app"
        Worker(self.app, settings, app_reference=self.app.reference).run()


def open_side(name: str, root: Path, kind: str) -> Any:
    """Return the side called `name`, and import that side only: what it holds is measured."""
    if name != "floor":
        return Product(root, kind)
    from tests.bench.floor import Floor

    return Floor(root)


def prepare(side: Any, options: dict[str, Any]) -> Figures:
    """Make the store."""
    side.prepare()
    return {}


def submit(side: Side, options: dict[str, Any]) -> Figures:
    """Store effects one by one, each on its own commit."""
    for number in range(10):
        side.submit(an_effect(number))
    while time.time() < options.get("start_at", 0):  # several callers begin together
        time.sleep(0.001)
    took = each_for(options["seconds"], lambda number: side.submit(an_effect(number)))
    return _figures(took)


def bulk(side: Side, options: dict[str, Any]) -> Figures:
    """Store effects a hundred to a commit."""
    side.submit_many([an_effect(number) for number in range(BULK)])  # the first call opens, compiles and imports on both sides
    took = each_for(options["seconds"], lambda _: side.submit_many([an_effect(number) for number in range(BULK)]))
    return {"rate": BULK * rate(took)}


def seed(side: Any, options: dict[str, Any]) -> Figures:
    """Store effects that wait; with `delay` all of them fall due later."""
    effects = [an_effect(number) for number in range(options["count"])]
    if options.get("delay"):
        side.submit_later(effects, options["delay"])
    else:
        side.submit_many(effects)
    return {}


def occupy(side: Product, options: dict[str, Any]) -> Figures:
    """Hold all runners at once, so that each of them has been started."""
    for handle in [side.submit(an_effect(number)) for number in range(options["count"])]:
        side.wait(handle)
    return {}


def latency(side: Side, options: dict[str, Any]) -> Figures:
    """Submit to an idle worker and wait, with pauses between."""
    pauses = random.Random(7)
    for number in range(3):  # the first calls open, compile and import on both sides
        side.wait(side.submit(an_effect(number)))
    took = []
    for number in range(options["count"]):
        time.sleep(pauses.uniform(0.02, 0.08))
        began = time.perf_counter()
        side.wait(side.submit(an_effect(number)))
        took.append(time.perf_counter() - began)
    return {"p50_ms": quantile_ms(took, 0.5), "p99_ms": quantile_ms(took, 0.99)}


def inline(side: Any, options: dict[str, Any]) -> Figures:
    """Call in this process, recorded before and after."""
    from tests.bench.effects import do_nothing

    call: Callable[[int], Any] = lambda number: side.do(an_effect(number))  # noqa: E731
    if not isinstance(side, Product):
        call = lambda number: side.do(an_effect(number), do_nothing)  # noqa: E731
    for number in range(5):
        call(number)
    return _figures(each_for(options["seconds"], call))


def work(side: Any, options: dict[str, Any]) -> Figures:
    """Be the worker."""
    from tests.bench import effects

    if isinstance(side, Product):
        side.work(options["slots"])
    else:
        side.work(options["slots"], effects.sleep_10_ms if options["kind"] == "sleep" else effects.do_nothing)
    return {}


def _figures(took: Sequence[float]) -> Figures:
    return {"rate": rate(took), "p50_ms": quantile_ms(took, 0.5), "p99_ms": quantile_ms(took, 0.99)}


ROLES: dict[str, Callable[[Any, dict[str, Any]], Figures]] = {
    role.__name__: role for role in (prepare, submit, bulk, seed, occupy, latency, inline, work)
}


def main(name: str, role: str, root: str, options_text: str) -> None:
    options: dict[str, Any] = json.loads(options_text)
    os.environ.setdefault("SETTLED_DATABASE", str(Path(root) / "settled.db"))
    side = open_side(name, Path(root), options.get("kind", "thread"))
    print(json.dumps(ROLES[role](side, options)), flush=True)
    os._exit(0)  # leave at once: what is measured is over, and a caller's tidying is not part of it


if __name__ == "__main__":
    main(*sys.argv[1:])
