"""What is sent, and what a channel is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One notification. `body` is JSON text, the same at every try; `created_us` is when it was first to be sent."""

    delivery_id: str
    created_us: int
    body: str

    def facts(self) -> Mapping[str, Any]:
        """Return the body as it was written."""
        said: dict[str, Any] = json.loads(self.body)
        return said


class DeliveryFailedError(Exception):
    """One try did not arrive, as far as we know; the text says why, without secrets."""


class Channel(Protocol):
    """One way to reach people."""

    def send(self, message: Message) -> None:
        """Deliver within the time limit. Raises DeliveryFailedError; anything else is a mistake of ours, and no delivery either."""
