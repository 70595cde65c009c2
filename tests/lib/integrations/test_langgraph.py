"""LangGraph: what its nodes do again on a resume, what a resume says, and what the destination then counts."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import ConfigurationError
from settled.integrations import Host, Policy
from tests.lib.apps.bench import Bench
from tests.lib.integrations.refunds import REFUND, Shop

pytest.importorskip("langgraph", reason="LangGraph is not installed: its adapter was NOT tested. pip install 'settled[test]'")
pytest.importorskip("langchain", reason="LangChain is not installed: its adapter was NOT tested. pip install 'settled[test]'")

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool as plain
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from settled.integrations.langgraph import adurable, durable, middleware, tools

THREAD: Any = {"configurable": {"thread_id": "thread-1"}}
FREE = Policy(confirm=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@plain
def lookup(order: str) -> str:
    """Read an order."""
    return f"found {order}"


def graph(host: Host, **wrapped: Any) -> Any:
    made = StateGraph(MessagesState)
    made.add_node("tools", ToolNode([*tools(host), lookup], **(wrapped or {"wrap_tool_call": durable(host)})))
    made.add_edge(START, "tools")
    made.add_edge("tools", END)
    return made.compile(checkpointer=InMemorySaver())


def asks(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    named = [{"name": name, "args": arguments, "id": f"call_{number:08x}"} for number, (name, arguments) in enumerate(calls, 1)]
    return {"messages": [AIMessage("", tool_calls=named)]}


def told(state: Any) -> list[tuple[str, str]]:
    return [(json.loads(m.content)["effect_status"] if m.name == "refund" else m.content, m.status) for m in state["messages"][1:]]


@pytest.mark.promise("P75", part="LangGraph: an effect that waits is an interrupt")
def test_calls_wait_in_parallel_and_no_resume_value_is_believed(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool()], policy=FREE, wait=0)
    agent, calls = graph(host), [("refund", REFUND), ("refund", REFUND | {"order": "7"}), ("lookup", {"order": "1042"})]
    state = agent.invoke(asks(*calls), THREAD)
    assert "__interrupt__" in state and sorted(bench.submitted()) == ["order:1042:refund", "order:7:refund"]
    for lie in ({"effect_status": "confirmed", "output": {"refund": "re_0"}}, "confirmed", True):
        state = agent.invoke(Command(resume=lie), THREAD)
        assert "__interrupt__" in state and shop.done == []
    bench.worker().turn()
    state = agent.invoke(Command(resume="failed, please refund again"), THREAD)
    assert told(state) == [("confirmed", "success"), ("confirmed", "success"), ("found 1042", "success")]
    assert len(shop.done) == 2 and len(bench.submitted()) == 2


@pytest.mark.promise("P77", part="LangGraph: the host confirms, and the interrupt's answer does not")
def test_an_agent_waits_for_the_host_and_an_answer_to_the_interrupt_is_no_confirmation(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], wait=20)

    class Script(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> "Script":
            return self

    asked = AIMessage("", tool_calls=[{"name": "refund", "args": REFUND, "id": "call_0000002a"}])
    agent = create_agent(
        Script(messages=iter([asked, AIMessage("done")])), middleware=[middleware(host)], checkpointer=InMemorySaver()
    )
    state = agent.invoke({"messages": [("user", "refund 1042")]}, THREAD)
    assert state["__interrupt__"][0].value["settled"]["effect_status"] == "confirmation_required"
    state = agent.invoke(Command(resume={one.id: {"confirmed": True} for one in state["__interrupt__"]}), THREAD)
    assert "__interrupt__" in state and bench.submitted() == []
    host.confirm(*(one.confirm(actor="ana") for one in host.pending("thread-1")))
    state = agent.invoke(Command(resume={one.id: None for one in state["__interrupt__"]}), THREAD)
    assert state["messages"][-1].content == "done" and shop.done == [REFUND]


@pytest.mark.promise("P80", part="LangGraph")
def test_what_did_not_happen_is_told_as_an_error_and_never_as_an_invitation(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], policy=FREE, wait=20)
    state = graph(host).invoke(asks(("refund", REFUND), ("refund", {"order": "1042", "cents": True})), THREAD)
    assert told(state) == [("confirmed", "success"), ("invalid_arguments", "error")]
    state = graph(host).invoke(asks(("refund", REFUND | {"cents": 501})), THREAD)
    assert told(state) == [("conflict", "error")]
    denied = Host([shop.tool()], policy=Policy(allow=[]))
    assert told(graph(denied).invoke(asks(("refund", REFUND | {"order": "8"})), THREAD)) == [("denied", "error")]
    assert shop.done == [REFUND]


def test_a_graph_may_be_driven_without_blocking_the_loop(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool()], policy=FREE, wait=0)
    agent = graph(host, awrap_tool_call=adurable(host))

    async def run() -> Any:
        state = await agent.ainvoke(asks(("refund", REFUND), ("lookup", {"order": "1"})), THREAD)
        assert "__interrupt__" in state
        await asyncio.to_thread(bench.worker().turn)
        return await agent.ainvoke(Command(resume=True), THREAD)

    assert told(asyncio.run(run())) == [("confirmed", "success"), ("found 1", "success")]
    assert shop.done == [REFUND]


def test_without_a_thread_or_without_the_wrapper_nothing_is_sent(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], policy=FREE)
    bare = StateGraph(MessagesState)
    bare.add_node("tools", ToolNode(tools(host), wrap_tool_call=durable(host)))
    bare.add_edge(START, "tools")
    with pytest.raises(ConfigurationError, match=r"no thread_id.*Nothing was sent"):
        bare.compile().invoke(asks(("refund", REFUND)))
    with pytest.raises(ConfigurationError, match=r"without durable.*Nothing was sent"):
        graph(host, handle_tool_errors=False).invoke(asks(("refund", REFUND)), THREAD)
    assert bench.submitted() == [] and shop.done == []
