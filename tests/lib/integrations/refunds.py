"""A shop with one refund contract, as an agent's tests need it: what is refunded is counted where it is done."""

import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic

from settled import Effect
from settled.integrations import Tool, effect_tool
from tests.lib.apps.bench import Bench

REFUND = {"order": "1042", "cents": 500}
ID = "order:1042:refund"


class Refund(pydantic.BaseModel):
    """What a refund needs."""

    order: Annotated[str, pydantic.Field(min_length=1, max_length=20, pattern=r"^[0-9]+$")]
    cents: Annotated[int, pydantic.Field(gt=0, le=100_000)]
    currency: Literal["eur", "usd"] = "eur"
    note: str = ""


def refund_id(arguments: dict[str, Any]) -> str:
    return f"order:{arguments['order']}:refund"


class Shop:
    """Does refunds in threads; `lose` of them lose their answer after they are done."""

    def __init__(self, bench: Bench, *, lose: int = 0, **terms: Any) -> None:
        self.bench, self.lose, self.done = bench, lose, list[dict[str, Any]]()
        self._lock = threading.Lock()
        given = {
            "name": "refund",
            "operation_id": refund_id,
            "arguments_type": Refund,
            "identity_fields": ("order", "cents"),
            "risk": "financial",
        }
        self.effect: Effect = bench.effect(self.refund, **(given | terms))

    def refund(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Give a customer the money of an order back."""
        with self._lock:
            self.done.append(dict(arguments))
            lost = len(self.done) <= self.lose
        if lost:
            raise ConnectionResetError("the answer was lost. Please try again!")
        return {"refund": f"re_{arguments['order']}"}

    def tool(self, **options: Any) -> Tool:
        return effect_tool(self.effect, **options)

    def found(self, answer: Callable[[], Any]) -> None:
        self.effect.probe(lambda: answer())
