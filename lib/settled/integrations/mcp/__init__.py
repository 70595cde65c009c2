"""Offer the effects of an App over the Model Context Protocol: submit, get and wait for each contract, and nothing of an operator.

Promise: a server submits and reads. It never dispatches, and what a client cancels, loses or repeats changes nothing in the ledger.
"""

from settled.integrations.needs import need

need("mcp_types", "mcp")  # before the modules below import the SDK: a missing one is one line

from settled.integrations.mcp.access import Address, find_token, parse_address  # noqa: E402
from settled.integrations.mcp.serve import serve_http, serve_stdio  # noqa: E402
from settled.integrations.mcp.server import make_server  # noqa: E402

__all__ = ["Address", "find_token", "make_server", "parse_address", "serve_http", "serve_stdio"]
