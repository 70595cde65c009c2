"""The pytest plugin: fixtures for tests of applications. Importing it costs next to nothing; everything else is imported by use.

    def test_a_lost_answer_is_found(settled_app, settled_clock, fake_provider):
        effect = settled_app.register(payment_contract(fake_provider))
        fake_provider.fail_next("lose_answer")
        …
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from settled.app import App
    from settled.testing.clock import MovableClock
    from settled.testing.provider import FakeProvider


@pytest.fixture
def settled_clock() -> "MovableClock":
    """The clock of `settled_app` and `fake_provider`; `advance(seconds)` lets time pass without waiting."""
    from settled.testing.clock import MovableClock

    return MovableClock()


@pytest.fixture
def settled_app(tmp_path: Path, settled_clock: "MovableClock") -> Iterator["App"]:
    """An App on a real ledger of its own in the test's folder, without chance in its waits. Closed and audited after the test."""
    from settled.app import App
    from settled.store.audit import verify

    app = App(tmp_path / "settled.db", clock=settled_clock)
    app.create_database()
    app.shell.draw = lambda: 0.0
    try:
        yield app
        findings = verify(app.ledger)
        assert not findings, [str(one) for one in findings]
    finally:
        app.close()


@pytest.fixture
def fake_provider(settled_clock: "MovableClock") -> "FakeProvider":
    """A provider that fails on request and counts its own effects. It deduplicates nothing; make another one for that."""
    from settled.testing.provider import FakeProvider

    return FakeProvider(clock=settled_clock)
