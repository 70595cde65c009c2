"""What `settled demo` pays, what goes wrong with each payment, and what is reported of it in the end. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from settled.core.words import EventType, Outcome
from settled.operation import Operation


class Payment(NamedTuple):
    """One order to be paid. `mode` is the shop's fault, None for none."""

    order: str
    trouble: str
    mode: str | None = None
    seconds: float = 0.0
    lose_answer: bool = False

    @property
    def operation_id(self) -> str:
        return f"order:{self.order}:charge"

    @property
    def reference(self) -> str:
        return f"order-{self.order}"

    @property
    def naive_reference(self) -> str:
        return f"naive-{self.order}"


AMOUNT_CENTS: Final = 4200
KILLED: Final = Payment("1006", "killed before the answer", "hang_after", 60.0)
OTHERS: Final = (
    Payment("1001", "nothing"),
    Payment("1002", "the answer was lost", "lose_answer"),
    Payment("1003", "cut off before the charge", "fail_before"),
    Payment("1004", "cut off, charged late", "commit_late", 3.0),
    Payment("1005", "answer lost, reads stale", "stale_reads", 3.0, lose_answer=True),
)
PAYMENTS: Final = (*OTHERS, KILLED)


class Counted(NamedTuple):
    """What the shop counted for one payment."""

    calls: int
    charges: int


def counted(counts: Mapping[str, Mapping[str, int]], reference: str) -> Counted:
    """Return the shop's own count for a reference."""
    return Counted(counts["calls"].get(reference, 0), counts["charges"].get(reference, 0))


def report(counts: Mapping[str, Mapping[str, int]], operations: Mapping[str, Operation], events: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the whole report. It passed only if every payment is confirmed with one charge and none is in progress."""
    payments = [_of(payment, counts, operations[payment.operation_id], events[payment.operation_id]) for payment in PAYMENTS]
    naive = [
        {"payment": payment.order, "trouble": payment.trouble, **counted(counts, payment.naive_reference)._asdict()} for payment in PAYMENTS
    ]
    return {
        "payments": payments,
        "naive": {"payments": naive, "charges": _sum(naive), "charged_more_than_once": sum(1 for one in naive if one["charges"] > 1)},
        "duplicate_effect_detected": any(one["charges"] > 1 for one in payments),
        "passed": all(one["confirmed"] and one["charges"] == 1 and not one["in_progress"] for one in payments),
    }


def table(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the report as rows that stand side by side."""
    rows = []
    for one, naive in zip(answer["payments"], answer["naive"]["payments"], strict=True):
        rows.append(
            {
                "payment": one["payment"],
                "what went wrong": one["trouble"],
                "naive: calls, charges": f"{naive['calls']}, {naive['charges']}",
                "settled: calls, charges": f"{one['calls']}, {one['charges']}",
                "outcome": one["outcome"],
                "established by": one["how"],
            }
        )
    return rows


def how_established(types: Iterable[str]) -> str:
    """Say in words which evidence settled a payment."""
    seen = list(types)
    last = seen[-1] if seen else ""
    if EventType.RETURNED in seen and EventType.PROBE_ABSENT in seen:
        return "a probe, then a retry"
    return _HOW.get(last, f"nothing ({last})")


_HOW: Final[Mapping[str, str]] = {
    EventType.RETURNED: "the answer",
    EventType.PROBE_COMMITTED: "a probe",
    EventType.LATE_RETURN: "a late answer",
}


def _of(payment: Payment, counts: Mapping[str, Mapping[str, int]], operation: Operation, types: list[str]) -> dict[str, Any]:
    return {
        "payment": payment.order,
        "trouble": payment.trouble,
        "operation_id": payment.operation_id,
        "status": operation.status.value,
        "outcome": None if operation.outcome is None else operation.outcome.value,
        "confirmed": operation.outcome is Outcome.CONFIRMED,
        "in_progress": operation.in_progress,
        "attempts": operation.attempts,
        "event_types": types,
        "how": how_established(types),
        **counted(counts, payment.reference)._asdict(),
    }


def _sum(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(row["charges"] for row in rows)
