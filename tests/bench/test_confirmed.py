"""What the benchmarks ask for in SQL is what the product counts, and the copies that `scale` makes are counted."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from settled.store.counting import FOLD
from settled.store.ledger import Ledger
from settled.store.reads import counts
from tests.bench import scale
from tests.bench.floor import ask
from tests.bench.workloads import CONFIRMED
from tests.lib.store.ledgers import dispatched, moved, new_ledger, returned, seal_up_to, settle, submit


def counted(ledger: Ledger) -> dict[str, dict[str, int]]:
    with ledger.read() as transaction:
        return counts(transaction)


@pytest.mark.parametrize("last", [4, FOLD - 1, FOLD, FOLD + 1, FOLD + 4])
def test_the_query_of_the_benchmarks_counts_what_the_product_counts(tmp_path: Path, last: int) -> None:
    ledger = new_ledger(tmp_path)
    assert ask(ledger.path, CONFIRMED) == 0
    seal_up_to(ledger, last - 4)
    made = submit(ledger, "a", "b", contract="confirmed") + submit(ledger, "c")
    moved(ledger, *(returned(row) for row in moved(ledger, *(dispatched(row) for row in made[1:]))))
    assert ask(ledger.path, CONFIRMED) == sum(of.get("confirmed", 0) for of in counted(ledger).values()) == 2


@pytest.mark.parametrize("last", [3, FOLD])
def test_the_copies_of_an_operation_are_counted(tmp_path: Path, last: int) -> None:
    ledger = new_ledger(tmp_path)
    (row,) = settle(ledger, *submit(ledger, "op"))
    seal_up_to(ledger, last)
    scale.fill(SimpleNamespace(ledger=ledger), row.id, 10, 1_000_000_000)
    assert counted(ledger)["capture_payment"]["confirmed"] == ask(ledger.path, CONFIRMED) == 11
