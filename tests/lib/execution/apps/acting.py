"""Make an app whose one contract, "act", is a plain function of its arguments. Imported by runners, from this folder."""

from collections.abc import Callable
from typing import Any

Act = Callable[[dict[str, Any]], Any]


class Contract:
    name, is_async, has_probe, has_postcondition = "act", False, False, False

    def __init__(self, act: Act) -> None:
        self._act = act

    def call_handler(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        return self._act(arguments)


class App:
    def __init__(self, act: Act) -> None:
        self._contract = Contract(act)

    def contract(self, name: str) -> Contract:
        return self._contract
