"""An agent of one effect, for processes of their own. The file RUNNING_OUTBOX stands for the world outside."""

import os
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from settled import App, ProbeResult
from settled.integrations import Call, Finish, Policy, Run, Runtime, effect_tool

app = App()
outbox = Path(os.environ["RUNNING_OUTBOX"])


class Refund(TypedDict):
    order: str


def refund_id(arguments: dict[str, Any]) -> str:
    return f"order:{arguments['order']}:refund"


@app.effect(name="refund", operation_id=refund_id, provider_reference=refund_id, arguments_type=Refund, isolation="thread", network_drain=0)
def refund(arguments: dict[str, Any]) -> dict[str, Any]:
    with outbox.open("a") as box:
        box.write(arguments["order"] + "\n")
    if os.environ.get("RUNNING_DIES"):
        os.kill(os.getpid(), 9)
    return {"refund": arguments["order"]}


@refund.probe
def is_refunded(arguments: dict[str, Any]) -> ProbeResult:
    if arguments["order"] in outbox.read_text().split():
        return ProbeResult.committed(reference=refund_id(arguments), output={"refund": arguments["order"]})
    return ProbeResult.unknown()


def agent(order: str = "1042") -> Runtime:
    def plan(run: Run) -> Call | Finish:
        return Call("refund", {"order": order}) if run.turn == 0 else Finish("done")

    return Runtime(app, plan=plan, tools=[effect_tool(refund, inline=True)], policy=Policy(confirm=False), wait=30)
