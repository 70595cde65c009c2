"""Time the hot functions of core and store one by one, so that a regression is seen where it is made: `make microbench`.

Not part of the tests, whose names it does not follow: a shared machine is no place for limits in microseconds. Compare two runs
with `pytest-benchmark compare`.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from settled.clock import SystemClock
from settled.core.canonical import canonical_text, fingerprint
from settled.core.decide_claim import Claim, decide_claim
from settled.core.decide_end import decide_end
from settled.core.fold import advance
from settled.core.words import FenceBasis
from settled.execution.job import End, Report
from settled.presence import Presence
from settled.steps.claim import Claimed
from settled.steps.ends import Ended, facts_of
from settled.steps.jobs import handler_job
from settled.steps.submit import check_order, store_orders
from settled.store.transaction import Transaction
from settled.store.waiting import find_ready
from settled.store.writer import Move, record
from tests.bench.measuring import an_effect

BATCH = 100


class Scene(NamedTuple):
    """One operation before its dispatch, and everything that its way needs."""

    app: Any
    effect: Any
    transaction: Transaction
    row: Any
    claim: Claim
    ended: Ended


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("SETTLED_DATABASE", str(tmp_path / "settled.db"))
    from settled import App, EffectContract

    app = App(str(tmp_path / "settled.db"))
    app.create_database()
    contract = EffectContract(name="thread", operation_id=lambda a: a["order"], isolation="thread", handler=lambda arguments: None)
    effect = app.register(contract)
    app.submit_many([(effect, an_effect(number)) for number in range(BATCH)])
    shell, now = app.shell, SystemClock().now()
    with pytest.raises(ZeroDivisionError), app.ledger.write() as transaction:
        row, stored = find_ready(transaction, ["thread"], now.wall_us, 1)[0][:2]
        terms = shell.terms_here("thread")
        claim = decide_claim(shell.plain_case(transaction, row, now), 1, shell.keep_terms(transaction, terms))
        claimed = advance(row, claim.events[0])
        job = handler_job(Claimed(claimed, stored, terms, None), 0, now, shell.limits)
        report = Report(job=job, end=End.RETURNED, output='{"done":true}', fence=FenceBasis.RETURNED, ended=now)
        yield Scene(app, effect, transaction, row, claim, Ended(claimed, report))
        raise ZeroDivisionError  # nothing of this is kept
    app.close()


Benchmark = Callable[..., Any]


def test_canonical_text_and_fingerprint(benchmark: Benchmark) -> None:
    arguments = an_effect(1)
    benchmark(lambda: fingerprint(canonical_text(arguments)))


def test_check_an_order(benchmark: Benchmark, scene: Scene) -> None:
    arguments, limits = an_effect(1), scene.app.shell.limits
    benchmark(lambda: check_order(scene.effect.contract, "thread", arguments, limits=limits))


def test_decide_a_claim(benchmark: Benchmark, scene: Scene) -> None:
    case = scene.app.shell.plain_case(scene.transaction, scene.row, SystemClock().now())
    benchmark(decide_claim, case, 1, 1)


def test_decide_a_plain_return(benchmark: Benchmark, scene: Scene) -> None:
    case = scene.app.shell.plain_case(scene.transaction, scene.ended.row, SystemClock().now())
    benchmark(lambda: decide_end(case, facts_of(case, scene.ended)))


def test_advance_a_row(benchmark: Benchmark, scene: Scene) -> None:
    benchmark(advance, scene.row, scene.claim.events[0])


def test_make_a_job(benchmark: Benchmark, scene: Scene) -> None:
    claimed = Claimed(scene.ended.row, "{}", scene.app.shell.terms_here("thread"), None)
    benchmark(handler_job, claimed, 0, SystemClock().now(), scene.app.shell.limits)


def test_store_a_hundred_requests(benchmark: Benchmark, scene: Scene) -> None:
    shell, now, numbers = scene.app.shell, SystemClock().now(), count()

    def orders() -> Any:
        made = [check_order(scene.effect.contract, "thread", an_effect(next(numbers)), limits=shell.limits) for _ in range(BATCH)]
        return (shell, scene.transaction, made, now), {}

    benchmark.pedantic(store_orders, setup=orders, rounds=30)  # type: ignore[attr-defined]


def test_find_a_hundred_ready_rows(benchmark: Benchmark, scene: Scene) -> None:
    benchmark(lambda: find_ready(scene.transaction, ["thread"], SystemClock().now().wall_us, BATCH))


def test_record_a_hundred_dispatches(benchmark: Benchmark, scene: Scene) -> None:
    cursor = scene.transaction.cursor
    rows = [found[0] for found in find_ready(scene.transaction, ["thread"], SystemClock().now().wall_us, BATCH)]

    def again() -> Any:
        for statement in ("ROLLBACK TO again", "RELEASE again", "SAVEPOINT again") if cursor_knows else ("SAVEPOINT again",):
            cursor.execute(statement)
        cursor_knows.append(True)
        return (scene.transaction, [Move(row, scene.claim.events) for row in rows]), {}

    cursor_knows: list[bool] = []
    benchmark.pedantic(record, setup=again, rounds=30)  # type: ignore[attr-defined]


def test_take_and_give_a_recorder_slot(benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_DATABASE", str(tmp_path / "settled.db"))
    from settled import App

    app = App(str(tmp_path / "settled.db"))
    app.create_database()
    presence = Presence(app.shell, kind="worker", contracts=(), slots=64)
    benchmark(lambda: presence.give_slot(presence.take_slot(1, 1), 1, 1))
    presence.close()
    app.close()
