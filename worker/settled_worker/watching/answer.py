"""What the endpoint answers with: kept apart from the server, which most workers never start and need not import."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

PLAIN: Final = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What is sent back."""

    code: int
    content_type: str
    body: bytes


Pages = Mapping[str, Callable[[], Answer]]


def plain(good: bool, text: str) -> Answer:
    """Return the answer to a yes-or-no question: 200 or 503, and one sentence."""
    return Answer(200 if good else 503, PLAIN, f"{text}\n".encode())
