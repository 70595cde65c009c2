"""The host's side of every adapter: what waits for it, what it confirmed, and what it may hear of a broken ledger."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import App, ConfigurationError, LedgerUnavailableError, Status
from settled.integrations import Host, Policy, effect_tool
from tests.lib.apps.bench import Bench
from tests.lib.integrations.refunds import ID, REFUND, Shop


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


def test_a_call_waits_for_the_hosts_word_and_a_confirmation_is_good_for_one_run_and_these_arguments(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], wait=20)
    asked = host.call("refund", REFUND, run_id="run-1")
    assert (asked.effect_status, asked.waiting, bench.submitted()) == ("confirmation_required", True, [])
    assert [one.arguments for one in host.pending("run-1")] == [REFUND] and host.pending("run-2") == []
    with pytest.raises(TypeError, match=r"made by Pending\.confirm"):
        host.confirm({"run_id": "run-1", "tool": "refund", "actor": "model"})  # type: ignore[arg-type]
    host.confirm(*(one.confirm(actor="ana") for one in host.pending("run-1")))
    assert host.call("refund", REFUND | {"cents": 501}, run_id="run-1").effect_status == "confirmation_required"
    assert host.call("refund", REFUND, run_id="run-2").effect_status == "confirmation_required"
    assert shop.done == []
    assert host.call("refund", REFUND, run_id="run-1").effect_status == Status.CONFIRMED
    assert REFUND not in [one.arguments for one in host.pending("run-1")]
    assert (shop.done, bench.app.get(ID).status) == ([REFUND], Status.CONFIRMED)


def test_a_confirmation_dies_with_its_process_and_the_next_one_asks_again(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], wait=20)
    host.call("refund", REFUND, run_id="run-1")
    host.confirm(*(one.confirm(actor="ana") for one in host.pending("run-1")))
    after_the_crash = Host([shop.tool(inline=True)], wait=20)
    assert after_the_crash.call("refund", REFUND, run_id="run-1").effect_status == "confirmation_required"
    assert shop.done == []


def test_the_same_call_again_is_the_same_operation_also_without_blocking_the_loop(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], policy=Policy(confirm=False), wait=20)

    async def both() -> list[str]:
        calls = [host.acall("refund", REFUND, run_id="run-1", call_id=f"call_{n:08x}") for n in range(2)]
        return [str(one.effect_status) for one in await asyncio.gather(*calls)]

    assert asyncio.run(both()) == [Status.CONFIRMED, Status.CONFIRMED]
    assert shop.done == [REFUND]


@pytest.mark.promise("P76", part="a key with the call ID in it is refused through every adapter")
def test_a_key_that_holds_the_call_id_is_refused(bench: Bench) -> None:
    shop = Shop(bench, operation_id=lambda a: f"refund:{a['note']}")
    host = Host([shop.tool()], policy=Policy(confirm=False))
    with pytest.raises(ValueError, match="holds the call ID"):
        host.call("refund", REFUND | {"note": "call_0000002a"}, run_id="run-1", call_id="call_0000002a")
    assert bench.submitted() == []


def test_what_a_host_did_not_offer_and_a_ledger_that_is_not_there_are_one_clear_line(bench: Bench, tmp_path: Path) -> None:
    shop = Shop(bench)
    host = Host([shop.tool()])
    with pytest.raises(ConfigurationError, match=r"no effect tool is named 'transfer'.*Nothing was sent"):
        host.call("transfer", {}, run_id="run-1")
    with pytest.raises(ConfigurationError, match="two tools are named 'refund'"):
        Host([shop.tool(), shop.tool()])
    host.check()
    nowhere = Host([effect_tool(shop.effect.contract, app=App(tmp_path / "none.db"))])
    with pytest.raises((ConfigurationError, LedgerUnavailableError)):
        nowhere.check()


def test_a_host_forgets_the_oldest_of_too_many_waiting_calls_and_asks_again_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("settled.integrations.host.WAITS_HERE_MAX", 2)
    host = Host([Shop(bench).tool()])
    for order in ("1", "2", "3"):
        host.call("refund", REFUND | {"order": order}, run_id="run-1")
    assert [one.arguments["order"] for one in host.pending("run-1")] == ["2", "3"]
    host.call("refund", REFUND | {"order": "1"}, run_id="run-1")
    assert [one.arguments["order"] for one in host.pending("run-1")] == ["3", "1"]


def test_a_key_of_the_call_is_the_runs_id_and_the_call_id_and_nothing_else(bench: Bench) -> None:
    shop = Shop(bench, risk="low", operation_id=None)
    with pytest.warns(UserWarning, match="only as durable as the framework's own checkpoint"):
        host = Host([shop.tool(key="call")], policy=Policy(confirm=False), wait=0)
    told = [host.call("refund", REFUND, run_id="run-1", call_id=call_id) for call_id in ("call_1", "call_1", "call_2")]
    assert [one.operation_id for one in told] == ["run-1:call_1", "run-1:call_1", "run-1:call_2"]
    assert [one.created for one in told] == [True, False, True]
    with pytest.raises(ConfigurationError, match="one is missing"):
        host.call("refund", REFUND, run_id="run-1")
