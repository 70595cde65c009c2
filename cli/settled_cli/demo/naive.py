"""The comparison of `settled demo`: charge, and try again when no answer came. It is what most code does.

`python -m settled_cli.demo.naive URL REFERENCE AMOUNT_CENTS` pays one order this way, so that it can be killed like a worker.
"""

import sys
from http.client import HTTPException
from typing import Final

from settled import EffectRejected
from settled_cli.demo import client

TRIES_MAX: Final = 3


def pay(url: str, reference: str, amount_cents: int) -> bool:
    """Charge up to three times until an answer comes; return whether one came."""
    for _ in range(TRIES_MAX):
        try:
            client.charge(url, reference=reference, amount_cents=amount_cents, currency="eur")
            return True
        except EffectRejected:
            return False
        except (OSError, HTTPException, client.ShopError):
            continue
    return False


if __name__ == "__main__":
    sys.exit(0 if pay(sys.argv[1], sys.argv[2], int(sys.argv[3])) else 1)
