"""One effect, the same for every system: charge one payment over HTTP, then stay at work until the story lets go.

What a story needs is in the environment: COMPARE_FOLDER (the system's own store), COMPARE_URL (the destination), COMPARE_HOLD (while
this file is there a handler that has its answer goes on working), COMPARE_KEY (the destination deduplicates, so the key is sent).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from settled.testing.http import ProviderClient

REFERENCE: Final = "payment-1"
DEADLINE_SECONDS: Final = 3.0
"""Each system's own deadline for a handler, where it has one; elsewhere the HTTP client's timeout."""


def folder() -> Path:
    return Path(os.environ["COMPARE_FOLDER"])


def charge(*, timeout: float = DEADLINE_SECONDS) -> dict[str, Any]:
    """Do the effect. Raises what the HTTP client raises; the client repeats nothing."""
    client = ProviderClient(os.environ["COMPARE_URL"], timeout=timeout)
    key = "charge:1" if os.environ.get("COMPARE_KEY") else None
    answer = client.create({"amount": 100}, reference=REFERENCE, idempotency_key=key)
    while Path(os.environ["COMPARE_HOLD"]).exists():
        time.sleep(0.05)
    return answer


def says(verdict: str, *, final: bool, person: str = "nothing") -> None:
    """Print what the system says of the effect, whether it will say something else by itself, and what a person has to do."""
    print(json.dumps({"says": verdict, "final": final, "person": person}))


def run(**roles: Callable[[], None]) -> None:
    """Do the role that the command line names, and leave at once: some clients' threads do not survive an interpreter's end."""
    roles[sys.argv[1]]()
    sys.stdout.flush()
    os._exit(0)


def forever() -> None:
    while True:
        time.sleep(60)
