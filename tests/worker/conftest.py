"""Audit every ledger that a test of the worker made: each history must fold to its row, chained and sealed."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import App
from settled.clock import boot_id_short
from settled.store import audit
from settled.store.ledger import Ledger
from settled.testing import VirtualClock
from settled_cli.demo.launch import running_shop
from tests.lib.store.ledgers import monotonic_us
from tests.worker.harness import Hand, declare, make_app, silent, submit, timed_out
from tests.worker.services import Place, place

MakeHand = Callable[..., Hand]
Lost = Callable[..., tuple[str, Hand]]


@pytest.fixture(autouse=True)
def audited(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Verify all ledgers under the test's folder afterwards, but those that the test damaged on purpose."""
    yield
    if request.node.get_closest_marker("damages_the_ledger"):
        return
    for path in tmp_path.rglob("*.db"):
        ledger = Ledger(str(path), monotonic_us=monotonic_us)
        found = audit.verify(ledger)
        ledger.close()
        assert not found, [str(one) for one in found]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(boot_id=boot_id_short())  # the machine's: real incarnations are examined by it


@pytest.fixture
def app(tmp_path: Path, clock: VirtualClock) -> Iterator[App]:
    made = make_app(tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def hand(app: App) -> Iterator[MakeHand]:
    """Make workers to drive by hand: `hand()`, or `hand(app=other, slots=4)`."""
    made: list[Hand] = []

    def make(*, app: App = app, **options: Any) -> Hand:
        made.append(Hand(app, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def lost(app: App, clock: VirtualClock, hand: MakeHand) -> Lost:
    """Make an operation whose first attempt was killed at its deadline; returns its ID and the worker."""

    def make(*, numbers: int = 1, **terms: Any) -> tuple[str, Hand]:
        declare(app, **{"isolation": "process", "outcome_probe": silent, **terms})
        ids = submit(app, *range(numbers))
        worker = hand(slots=32, probe_room=32)
        worker.step(*(timed_out(job, clock.now()) for job in worker.step().jobs))
        return ids[0], worker

    return make


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one shop for all tests; each uses references of its own."""
    with running_shop(tmp_path_factory.mktemp("shop") / "charges.jsonl") as running:
        yield running.url


@pytest.fixture
def make_place(tmp_path: Path, shop: str, audited: None) -> Iterator[Callable[..., Place]]:
    """Make a ledger and a folder for marks at the shop; every service that the test starts is gone before the audit."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(place(tmp_path, shop, **options))


@pytest.fixture
def here(make_place: Callable[..., Place]) -> Place:
    return make_place()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "damages_the_ledger: the test damages its ledger on purpose, so that no audit follows")
