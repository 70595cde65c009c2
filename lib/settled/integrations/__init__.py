"""Effects as tools of agents: one neutral core, and a thin module for each framework. No framework is imported from here."""

from settled.integrations.answers import ToolResult, tell
from settled.integrations.tools import Tool, UnsafeKeyError, effect_tool, effect_tools

__all__ = ["Tool", "ToolResult", "UnsafeKeyError", "effect_tool", "effect_tools", "tell"]
