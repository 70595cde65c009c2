"""What a process remembers of stored terms: only what is committed, and never less than a decision was given."""

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from settled import App, LedgerUnavailableError, OperationConflictError
from settled.core.terms import Terms
from settled.store.reads import find_row
from settled.store.snapshots import read_terms

OTHER = Terms(name="other", version="7")


class Unwanted(Exception):
    """The block does not want what it wrote."""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(tmp_path / "settled.db")
    app.create_database()
    declare(app)
    yield app
    app.close()


def declare(app: App, **terms: object) -> None:
    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread", unknown_outcome="keep_unknown", **terms)
    def pay(arguments: dict[str, object]) -> None:
        raise RuntimeError("the answer was lost")


@pytest.mark.promise("P14", part="the terms in force: what was rolled back is forgotten before anybody else may write")
@pytest.mark.parametrize("failing", ["block", "commit"])
def test_terms_that_were_rolled_back_are_forgotten_before_the_next_write(app: App, failing: str) -> None:
    """Their ID goes to the next snapshot that is stored: an operation would be bound to the terms of another contract."""
    shell = app.shell
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises((Unwanted, LedgerUnavailableError)), shell.ledger.write() as transaction:
            shell.keep_terms(transaction, shell.terms_here("pay"))
            if failing == "block":
                raise Unwanted
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, unlimited[1]))  # the disk takes no commit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    with shell.ledger.write() as transaction:
        others = shell.keep_terms(transaction, OTHER)
        mine = shell.keep_terms(transaction, shell.terms_here("pay"))
        assert {key: terms.name for key, terms in read_terms(transaction, [others, mine]).items()} == {others: "other", mine: "pay"}


@pytest.mark.promise("S05", part="by the terms stored at the dispatch, whatever other threads do meanwhile")
def test_a_refused_submission_takes_no_terms_from_a_decision_of_another_thread(app: App) -> None:
    """Without the terms of its dispatch a key would be judged by those of a later deployment alone."""
    app.execute("pay", {"n": 1})
    del app.contracts["pay"]
    declare(app, provider_idempotency_key=lambda a: f"key:{a['n']}", provider_idempotency_guaranteed=True)
    shell = app.shell
    with shell.ledger.read() as transaction, ThreadPoolExecutor(1) as another:
        row = find_row(transaction, "pay:1")
        assert row is not None
        case = shell.full_case(transaction, row, shell.clock.now())
        binding = case.binding_terms()
        assert [terms.key_guaranteed for terms in binding] == [False, True]
        with pytest.raises(OperationConflictError):
            another.submit(app.submit, "pay", {"n": 1, "more": 1}).result()
        assert case.binding_terms() == binding
