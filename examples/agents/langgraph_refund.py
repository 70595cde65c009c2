"""LangGraph: an agent refunds, is killed, and is resumed from its checkpoint; no model key is needed.

    python examples/agents/langgraph_refund.py
"""

import json
import sys
from typing import Any

import scene
import shop
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from settled.integrations.langgraph import middleware

CONFIG: Any = {"configurable": {"thread_id": "thread-1"}}


class Script(GenericFakeChatModel):
    """Stand for a model: it asks for the refund, and ends when it was told."""

    def bind_tools(self, tools: Any, **_: Any) -> "Script":
        return self


def model() -> Script:
    call_id, arguments = scene.asked()
    asks = AIMessage("", tool_calls=[{"name": "refund", "args": arguments, "id": call_id}])
    return Script(messages=iter([AIMessage("refunded")] if there_is_a_checkpoint() else [asks, AIMessage("refunded")]))


def there_is_a_checkpoint() -> bool:
    return (scene.folder() / "checkpoints.db").exists()


def be_the_agent() -> Any:
    brain = model()
    resumed = there_is_a_checkpoint()
    with SqliteSaver.from_conn_string(str(scene.folder() / "checkpoints.db")) as saver:  # a file of its own, not the ledger
        agent = create_agent(brain, middleware=[middleware(shop.host)], checkpointer=saver)
        if not resumed:
            state = agent.invoke({"messages": [("user", "refund order 1042")]}, CONFIG)
        else:
            waiting = agent.get_state(CONFIG).interrupts
            # What the resume says does not matter. Where the process was killed in the call, there is no interrupt to answer.
            state = agent.invoke(Command(resume={one.id: "go on" for one in waiting}) if waiting else None, CONFIG)
        if "__interrupt__" in state:
            scene.paused("kept by the checkpointer")
    return json.loads(state["messages"][-2].content)


if __name__ == "__main__":
    sys.exit(scene.main(__file__, be_the_agent))
