"""Decide what becomes of each charge and keep the truth about it, for the shop's HTTP side to call.

Every public method of Shop may be called from any thread. A charge counts as pending from its arrival until it is written or dropped.
"""

import threading
import time
from collections import Counter
from typing import Any, Final, NamedTuple

from settled_cli.demo.charges import Charge, ChargeFile, Order
from settled_cli.demo.faults import NO_FAULT, Fault

KEY_CONFLICT: Final = "this Idempotency-Key was used with another order. Nothing was charged. Use a new key for a new order."


class Answer(NamedTuple):
    """What the caller gets. Status None: the connection is closed instead. It is held back for `hold_seconds` first."""

    status: int | None
    body: dict[str, Any]
    hold_seconds: float = 0.0


class Shop:
    """The truth about charges, calls and armed faults."""

    def __init__(self, file: ChargeFile, *, idempotent: bool) -> None:
        self._file, self._idempotent = file, idempotent
        self._moved = threading.Condition()
        self._calls: Counter[str] = Counter()
        self._pending: Counter[str] = Counter()
        self._faults: dict[str, Fault] = {}
        self._hidden_until: dict[str, float] = {}  # by charge ID, on the monotonic clock

    def arm(self, reference: str, fault: Fault) -> None:
        with self._moved:
            self._faults[reference] = fault

    def charge(self, order: Order, key: str | None) -> Answer:
        """Accept one order and do with it what the fault armed for its reference says."""
        plan, seconds = self._receive(order.reference)
        if plan.commit_late:
            timer = threading.Timer(seconds, self._commit, (order, key, plan.commits))
            timer.daemon = True
            timer.start()
            return Answer(None, {})
        if plan.commits == 0:
            self._drop(order.reference)
            return Answer(plan.status, {"error": "the card was declined; nothing was charged"})
        charge, replayed = self._commit(order, key, plan.commits, seconds if plan.stale_reads else 0.0)
        if charge.order != order:
            return Answer(409, {"error": KEY_CONFLICT})
        body = {"error": "the charge was made, then something broke"} if plan.status == 500 else shown(charge, replayed)
        return Answer(plan.status, body, seconds if plan.hold_answer else 0.0)

    def find(self, reference: str) -> dict[str, Any]:
        """What a reader sees: possibly stale, never wrong about `pending`."""
        with self._moved:
            now = time.monotonic()
            charges = [shown(c) for c in self._committed(reference) if self._hidden_until.get(c.charge_id, 0.0) <= now]
            return {"reference": reference, "charges": charges, "pending": self._pending[reference], "complete": True}

    def count(self) -> dict[str, Any]:
        """The truth for whoever checks the shop: stale reads do not touch it. Calls are counted since this process started."""
        with self._moved:
            return {"charges": dict(Counter(c.reference for c in self._file.charges)), "calls": dict(self._calls)}

    def wait(self, reference: str, state: str, count: int, timeout_seconds: float) -> bool:
        """Block until `count` calls were received or charges committed for this reference; False if time ran out first."""
        with self._moved:
            return self._moved.wait_for(lambda: self._reached(reference, state) >= count, timeout_seconds)

    def _reached(self, reference: str, state: str) -> int:
        return self._calls[reference] if state == "received" else len(self._committed(reference))

    def _committed(self, reference: str) -> list[Charge]:
        return [c for c in self._file.charges if c.reference == reference]

    def _receive(self, reference: str) -> Fault:
        with self._moved:
            self._calls[reference] += 1
            self._pending[reference] += 1
            self._moved.notify_all()
            return self._faults.pop(reference, Fault(NO_FAULT, 0.0))

    def _drop(self, reference: str) -> None:
        with self._moved:
            self._pending[reference] -= 1

    def _commit(self, order: Order, key: str | None, times: int, hidden_seconds: float = 0.0) -> tuple[Charge, bool]:
        """Write the charge, or find the one that its key already made. Returns it and whether it was found."""
        with self._moved:
            try:
                # `twice` is a provider that breaks its own rule: it writes again whatever the key says.
                if self._idempotent and key is not None and times == 1:
                    for earlier in self._file.charges:
                        if earlier.key == key:
                            return earlier, True
                for _ in range(times):
                    charge = self._file.append(order, key)
                    self._hidden_until[charge.charge_id] = time.monotonic() + hidden_seconds
                return charge, False
            finally:
                self._pending[order.reference] -= 1
                self._moved.notify_all()


def shown(charge: Charge, replayed: bool = False) -> dict[str, Any]:
    """A charge as callers see it."""
    body: dict[str, Any] = {"charge_id": charge.charge_id, **charge.order._asdict(), "status": "captured"}
    return {**body, "replayed": True} if replayed else body
