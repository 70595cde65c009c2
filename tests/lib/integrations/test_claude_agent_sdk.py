"""Claude Agent SDK: what the in-process tools answer, and what the hook blocks. No session and no command line is started here."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import App, ConfigurationError
from settled.integrations import Host, Policy, effect_tool
from tests.lib.apps.bench import Bench
from tests.lib.integrations.refunds import REFUND, Shop

pytest.importorskip(
    "claude_agent_sdk",
    reason="Claude Agent SDK (400 MB) is not installed: its adapter was NOT tested. pip install 'settled[claude-agent-sdk]'",
)

from mcp import Client

from settled.integrations.claude_agent_sdk import BLOCKED, guard, server

FREE = Policy(confirm=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


def ask(host: Host, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    async def run() -> Any:
        async with Client(server(host, run_id="run-1")["instance"]) as session:
            return await session.call_tool("refund", arguments)

    result = asyncio.run(run())
    try:
        return json.loads(result.content[0].text), bool(result.is_error)
    except ValueError:
        return {"effect_status": result.content[0].text}, bool(result.is_error)


def hook(host: Host, name: str = "mcp__settled__refund") -> dict[str, Any]:
    matcher = guard(host)
    assert (matcher.matcher, matcher.on_failure) == ("mcp__settled__.*", "block")
    decision: dict[str, Any] = asyncio.run(matcher.hooks[0]({"tool_name": name, "tool_input": {}}, "toolu_1", {"signal": None}))
    return decision


@pytest.mark.promise("P75", part="Claude Agent SDK: an effect that waits is told so, and is no error")
def test_a_tool_is_called_again_until_it_no_longer_waits(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool()], policy=FREE, wait=0)
    told, failed = ask(host, REFUND)
    assert (told["effect_status"], told["next_action"], failed) == ("prepared", "wait", False)
    bench.worker().turn()
    told, failed = ask(host, REFUND)
    assert (told["effect_status"], told["output"], failed) == ("confirmed", {"refund": "re_1042"}, False)
    assert shop.done == [REFUND]


@pytest.mark.promise("P77", part="Claude Agent SDK: the host confirms")
def test_the_host_confirms_and_what_did_not_happen_is_told_as_an_error(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], wait=20)
    assert ask(host, REFUND)[0]["effect_status"] == "confirmation_required" and bench.submitted() == []
    host.confirm(*(one.confirm(actor="ana") for one in host.pending("run-1")))
    assert ask(host, REFUND)[0]["effect_status"] == "confirmed"
    told, failed = ask(Host([shop.tool()], policy=FREE), REFUND | {"cents": 501})
    assert (told["effect_status"], failed) == ("conflict", True)
    assert ask(Host([shop.tool()], policy=FREE), {"order": "1042", "cents": True})[1] is True
    assert shop.done == [REFUND]


def test_the_hook_blocks_while_the_ledger_cannot_be_used(bench: Bench, tmp_path: Path) -> None:
    shop = Shop(bench)
    assert hook(Host([shop.tool()])) == {}
    decision = hook(Host([effect_tool(shop.effect.contract, app=App(tmp_path / "none.db"))]))["hookSpecificOutput"]
    assert (decision["permissionDecision"], decision["permissionDecisionReason"]) == ("deny", BLOCKED)
    assert str(tmp_path) not in json.dumps(decision)
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    torn = hook(Host([effect_tool(shop.effect.contract, app=App(tmp_path / "torn.db"))]))
    assert torn["hookSpecificOutput"]["permissionDecision"] == "deny"


def test_a_key_of_the_call_id_cannot_be_used_where_no_call_id_is_given(bench: Bench) -> None:
    shop = Shop(bench, risk="low", operation_id=None)
    with pytest.warns(UserWarning, match="only as durable"):
        tool = shop.tool(key="call")
    with pytest.raises(ConfigurationError, match="makes its key of the call ID"):
        server(Host([tool]), run_id="run-1")
