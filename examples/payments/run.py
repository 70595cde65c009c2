"""Run the whole example: four paid orders, four refunds, three ways to lose an answer, and count what Stripe really holds.

    python run.py [--stripe URL] [--provider-commits-twice]

Exit code 0 only if every refund is confirmed and localstripe holds exactly one per order. Everything runs on this machine, in a
temporary folder, and only what was started here is stopped.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import stripe

HERE = Path(__file__).resolve().parent
SETTLED = [sys.executable, "-c", "from settled_cli.main import main; main()"]  # the command `settled`, wherever its script is
WAIT_SECONDS = 60.0
T = TypeVar("T")


class Order(NamedTuple):
    order_id: str
    fault: str  # what the proxy does to its refund; "" for nothing
    payment_intent: str
    amount_cents: int

    @property
    def operation_id(self) -> str:
        return f"order:{self.order_id}:refund"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stripe", metavar="URL", help="use this localstripe instead of starting one")
    parser.add_argument("--provider-commits-twice", action="store_true", help="break the provider: the run must fail")
    options = parser.parse_args()
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="settled-payments-")))
        url = options.stripe or running.enter_context(localstripe())
        proxy = running.enter_context(lossy_proxy(url))
        truth = stripe.StripeClient("sk_test_example", base_addresses={"api": url}, max_network_retries=0)
        faults = {"1001": "", "1002": "drop_after", "1003": "hang_after", "1004": "drop_before"}
        if options.provider_commits_twice:
            faults["1001"] = "twice"
        orders = [paid_order(truth, order_id, fault) for order_id, fault in faults.items()]
        for order in orders:
            arm(proxy, order)
        answers = refund(orders, {**os.environ, "SETTLED_DATABASE": str(folder / "settled.db"), "STRIPE_API_BASE": proxy})
        return report(orders, answers, {order.order_id: refunds_at(truth, order) for order in orders})


def refund(orders: list[Order], environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Let the agent ask and the worker act, with a person for what no evidence settles. Returns the agent's answers by operation."""
    run_settled(environment, "init")
    asked = json.dumps([{k: v for k, v in order._asdict().items() if k != "fault"} for order in orders])
    with (
        process([*SETTLED, "worker", "run", "--app", "app:app"], environment) as worker,
        process([sys.executable, "agent.py", asked, "--wait", str(WAIT_SECONDS)], environment, stdout=subprocess.PIPE) as agent,
    ):
        # The request of this order never arrived, but nobody here can know that: the probe finds nothing, which proves nothing.
        for order in orders:
            if order.fault == "drop_before":
                decide_as_a_person(order, environment, worker)
        answers = [json.loads(line) for line in agent.communicate(timeout=WAIT_SECONDS + 30)[0].splitlines()]
    return {answer["operation_id"]: answer for answer in answers}


def decide_as_a_person(order: Order, environment: dict[str, str], worker: subprocess.Popen[str]) -> None:
    """Do what the operator of the shop would: look at Stripe's own pages, see no refund, and authorize one retry."""

    def quarantined() -> dict[str, Any] | None:
        if worker.poll() is not None:
            raise SystemExit(f"run.py: the worker ended with {worker.returncode}")
        seen = run_settled(environment, "-o", "json", "op", "show", order.operation_id, allowed=(0, 3))
        operation: dict[str, Any] = json.loads(seen) if seen else {}
        return operation if operation.get("status") == "quarantined" else None

    operation = wait_for(quarantined, f"{order.operation_id} is quarantined")
    said = ["--actor", "ana", "--reason", "no refund on the payment's page", "--evidence-reference", "example:1004"]
    seen_version = ["--expected-version", str(operation["version"]), "--confirm-operation-id", order.operation_id]
    run_settled(environment, "quarantine", "authorize-retry", order.operation_id, *said, *seen_version)


def report(orders: list[Order], answers: dict[str, dict[str, Any]], held: dict[str, list[str]]) -> int:
    print(f"{'order':<7}{'what happened on the way':<26}{'status':<17}{'outcome':<11}{'attempts':>8}  refunds at Stripe")
    good = True
    for order in orders:
        answer = answers.get(order.operation_id, {"status": "?", "outcome": "?", "attempts": "?"})
        count = len(held[order.order_id])
        good = good and answer["outcome"] == "CONFIRMED" and count == 1
        told = f"{answer['status']:<17}{answer['outcome']:<11}{answer['attempts']:>8}"
        print(f"{order.order_id:<7}{order.fault or 'nothing':<26}{told}  {count}")
    print("every order was refunded one time" if good else "NOT every order was refunded one time")
    return 0 if good else 1


def paid_order(truth: stripe.StripeClient, order_id: str, fault: str) -> Order:
    method = truth.v1.payment_methods.create(
        {"type": "card", "card": {"number": "4242424242424242", "exp_month": 12, "exp_year": 2040, "cvc": "123"}}
    )
    intent = truth.v1.payment_intents.create({"amount": 4200, "currency": "usd", "payment_method": method.id, "confirm": True})
    return Order(order_id, fault, intent.id, 4200)


def refunds_at(truth: stripe.StripeClient, order: Order) -> list[str]:
    return [refund.id for refund in truth.v1.refunds.list({"payment_intent": order.payment_intent, "limit": 100}).auto_paging_iter()]


def arm(proxy: str, order: Order) -> None:
    if order.fault:
        body = json.dumps({"match": order.operation_id, "mode": order.fault, "seconds": 30}).encode()
        urllib.request.urlopen(urllib.request.Request(proxy + "/__fault", body), timeout=10).close()


@contextlib.contextmanager
def localstripe() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "localstripe", "--port", str(port), "--from-scratch"]
    with process(command, dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def listens() -> bool | None:
            if server.poll() is not None:
                raise SystemExit(f"run.py: localstripe ended with {server.returncode}. Install it: pip install localstripe")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return None

        wait_for(listens, "localstripe listens")
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def lossy_proxy(upstream: str) -> Iterator[str]:
    with process([sys.executable, "proxy.py", upstream], dict(os.environ), stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        yield json.loads(proxy.stdout.readline())["url"]


@contextlib.contextmanager
def process(command: list[str], environment: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command in this folder while the block runs, then ask it to end, then make it."""
    with subprocess.Popen(command, cwd=HERE, env=environment, text=True, **streams) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()


def run_settled(environment: dict[str, str], *arguments: str, allowed: tuple[int, ...] = (0,)) -> str:
    ended = subprocess.run([*SETTLED, *arguments], cwd=HERE, env=environment, text=True, capture_output=True, timeout=60)
    if ended.returncode not in allowed:
        raise SystemExit(f"run.py: settled {' '.join(arguments)} ended with {ended.returncode}: {ended.stderr.strip()}")
    return ended.stdout if ended.returncode == 0 else ""


def wait_for(condition: Callable[[], T | None], what: str) -> T:
    until = time.monotonic() + WAIT_SECONDS
    while (value := condition()) is None:
        if time.monotonic() > until:
            raise SystemExit(f"run.py: waited {WAIT_SECONDS:.0f} seconds in vain until {what}")
        time.sleep(0.1)
    return value


if __name__ == "__main__":
    sys.exit(main())
