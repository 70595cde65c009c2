"""The pytest plugin of the worker: `settled_worker`, a worker over `settled_app` that a test turns by hand."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from settled.app import App
    from settled_worker.testing.handworker import HandWorker


@pytest.fixture
def settled_worker(settled_app: "App") -> Iterator["HandWorker"]:
    """A worker over `settled_app`: `turn()`, `sweep(name)`, `settle(operation_id)`. Contracts may be declared after it."""
    from settled_worker.testing.handworker import HandWorker

    with HandWorker(settled_app) as worker:
        yield worker
