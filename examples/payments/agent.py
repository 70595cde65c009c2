"""Do what an agent does with a tool call: ask for a refund, ask again because it forgot, and wait for what is known.

    python agent.py ORDERS [--wait SECONDS]    ORDERS: a JSON list of {"order_id", "payment_intent", "amount_cents"}; prints JSON lines

It never talks to Stripe. Asking twice is safe: the order names the operation, so the second time finds the first.
"""

import argparse
import json
import time

from app import app, refund_order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("orders", type=json.loads)
    parser.add_argument("--wait", type=float, default=60.0, help="seconds in total")
    options = parser.parse_args()
    submitted = [refund_order.submit(order) for order in options.orders]
    for order in options.orders:
        again = refund_order.submit(order)
        assert not again.created, "one order, two operations"
    until = time.monotonic() + options.wait
    for operation in submitted:
        seen = app.wait(operation.operation_id, timeout=max(0.1, until - time.monotonic()))
        print(
            json.dumps(
                {
                    "operation_id": seen.operation_id,
                    "status": str(seen.status),
                    "outcome": str(seen.outcome),
                    "attempts": seen.attempts,
                    "next_action": str(seen.next_action),
                    "version": seen.version,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
