"""Effects as tools of agents: one neutral core, a reference runtime, and a thin module for each framework.

No framework is imported from here.
"""

from settled.integrations.answers import ToolResult, tell
from settled.integrations.gate import Gate
from settled.integrations.host import Host
from settled.integrations.plain import PlainTool, plain_tool
from settled.integrations.policy import Confirmation, Pending, Policy
from settled.integrations.run import Call, Finish, Run, RunConflictError, RunNotFoundError, RunState, Step
from settled.integrations.runtime import Runtime
from settled.integrations.tools import Tool, UnsafeKeyError, effect_tool, effect_tools

__all__ = [
    "Call",
    "Confirmation",
    "Finish",
    "Gate",
    "Host",
    "Pending",
    "PlainTool",
    "Policy",
    "Run",
    "RunConflictError",
    "RunNotFoundError",
    "RunState",
    "Runtime",
    "Step",
    "Tool",
    "ToolResult",
    "UnsafeKeyError",
    "effect_tool",
    "effect_tools",
    "plain_tool",
    "tell",
]
