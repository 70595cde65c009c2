"""Check the promise ids in marks while tests are collected, and give every test one way to wait.

A mark that names an id tests/promises.toml does not hold is a collection error: no test can claim a promise that nobody made.
"""

import fcntl
import logging
import os
import signal
import time
import tomllib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog

from settled import logs
from settled.execution.incarnation import MARK

T = TypeVar("T")
PROMISES = Path(__file__).with_name("promises.toml")


def is_free(path: Path) -> bool:
    """Return whether nobody holds the lock of this file."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def eventually(condition: Callable[[], T], *, seconds: float = 10.0, pause_seconds: float = 0.01) -> T:
    """Return the first true value of `condition()`, asked again and again; fail with the last value after `seconds`.

    An exception of the condition is not caught: a condition that may not hold yet returns something false.
    """
    give_up_at = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= give_up_at:
            pytest.fail(f"did not come true within {seconds} s; the last answer was {value!r}")
        time.sleep(pause_seconds)


@pytest.fixture(name="eventually", scope="session")
def _eventually() -> Callable[..., Any]:
    """`eventually` for tests that would rather take it as an argument than import it from tests.conftest."""
    return eventually


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Leave to the next test what an App or `configure_logs` changes for the whole process: its mark, and where its lines go."""
    root = logging.getLogger()
    mark, output, handlers = os.environ.get(MARK), logs._output, root.handlers[:]
    yield
    os.environ.pop(MARK, None)
    if mark is not None:
        os.environ[MARK] = mark
    logs._output, root.handlers[:] = output, handlers
    structlog.reset_defaults()


def known_promise_ids() -> frozenset[str]:
    """Return every id of tests/promises.toml."""
    with PROMISES.open("rb") as source:
        return frozenset(id_ for promise in tomllib.load(source)["promise"] for id_ in promise["ids"])


KNOWN = known_promise_ids()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a script starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "promise(*ids, part=None): what of tests/promises.toml this test shows, whole or only a part")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one xdist_group in one process: pytest-xdist 3.8 writes the group where pytest 9.2 no longer reads it."""
    for item in items:
        grouped = getattr(item, "_nodeid", item.nodeid)
        if grouped != item.nodeid and hasattr(item, "_id"):
            item._id = type(item._id).parse(grouped)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> Generator[None, Any, Any]:
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Item):
            refuse_unknown_promises(collector, item)
    return made


def refuse_unknown_promises(collector: pytest.Collector, item: pytest.Item) -> None:
    """Raise the collector's error if a promise mark of `item` names no id, one that nobody promised, or a part that is no text."""
    for mark in item.iter_markers("promise"):
        unknown = [id_ for id_ in mark.args if id_ not in KNOWN]
        parts = {name: value for name, value in mark.kwargs.items() if name != "part" or not isinstance(value, str) or not value.strip()}
        if unknown or not mark.args or parts:
            said = ", ".join(map(repr, unknown)) or ("no id" if not mark.args else f"{parts!r}")
            raise collector.CollectError(
                f"{item.nodeid}: the promise mark names {said}. Use ids of tests/promises.toml as strings, and part=\"…\" for a part."
            )
