"""Write the text of a notification: facts about an incident, bounded, redacted, on single lines.

Promise: no argument, result or error text of an operation is ever in one. What a person needs is the name of the operation,
why it waits, and the next command; the rest is looked up where access to it is controlled.
"""

import json
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from settled.core.incidents import IncidentKind
from settled.core.ladder import Incident
from settled.core.moment import SECOND_US
from settled.core.text import one_line
from settled.core.words import Risk
from settled.shell import Shell
from settled.store.outbox import Wanted

SCHEMA: Final = "settled.notification.v1"
_RISKS: Final = tuple(risk.value for risk in reversed(Risk))
_GROUPS_MAX: Final = 20
_SAID: Final = {
    IncidentKind.QUARANTINED: "is quarantined",
    IncidentKind.CONFLICT: "has conflicting evidence",
    IncidentKind.KEPT_UNKNOWN: "stays unknown",
    IncidentKind.HELD: "is held",
    IncidentKind.DUPLICATE_SUSPECTED: "has perhaps happened twice",
    IncidentKind.TOO_MANY_UNKNOWN: "is paused",
}


class Teller:
    """Writes texts about the incidents of one ledger."""

    def __init__(self, shell: Shell, redact: Callable[[str], str]) -> None:
        self._limits, self._redact = shell.limits, redact
        self._ledger = shell.ledger.meta["ledger_id"]

    def about(self, wanted: Wanted, now_us: int) -> str:
        """Return the body of one notification."""
        incident = wanted.incident
        return self._body(
            wanted.delivery_id,
            "reminder" if wanted.number else "incident",
            now_us,
            self._sentence(wanted),
            self._next(wanted),
            incident={
                "id": incident.id,
                "kind": incident.kind,
                "reason": self._clean(incident.reason),
                "operation_id": None if wanted.operation_id is None else self._clean(wanted.operation_id),
                "contract": self._clean(incident.contract),
                "queue": self._clean(incident.queue),
                "risk": incident.risk,
                "opened_at": utc(incident.opened_us),
                "closed_at": None if incident.closed_us is None else utc(incident.closed_us),
                "step": wanted.step,
                "number": wanted.number,
            },
        )

    def about_all(self, delivery_id: str, wanted: Sequence[Wanted], now_us: int) -> str:
        """Return the body of a digest: how many, of what, and the most urgent by name."""
        groups = Counter((one.incident.contract, one.incident.reason, one.incident.risk) for one in wanted)
        most = [
            {"contract": self._clean(contract), "reason": self._clean(reason), "risk": risk, "count": count}
            for (contract, reason, risk), count in groups.most_common(_GROUPS_MAX)
        ]
        urgent = sorted(wanted, key=lambda one: (_urgency(one.incident), one.incident.opened_us, one.id))
        named = [self._clean(one.operation_id) for one in urgent if one.operation_id is not None][: self._limits.digest_named_max]
        whole = len(wanted) < self._limits.digest_incidents_max
        count = f"{'' if whole else 'at least '}{len(wanted)} notification{'' if len(wanted) == 1 else 's'}"
        mostly = f"{most[0]['contract']} ({most[0]['reason']}): {most[0]['count']}"
        sentence = f"{count} at once, most of {mostly}"
        digest = {"count": len(wanted), "whole": whole, "groups": most, "groups_left_out": max(0, len(groups) - _GROUPS_MAX),
                  "operation_ids": named}  # fmt: skip
        return self._body(delivery_id, "digest", now_us, sentence, "settled quarantine list", digest=digest)

    def _sentence(self, wanted: Wanted) -> str:
        incident = wanted.incident
        named = wanted.operation_id if wanted.operation_id is not None else f"contract {incident.contract}"
        again = f", told {wanted.number + 1} times" if wanted.number else ""
        over = " (over since)" if incident.closed_us is not None else ""
        said = _SAID[IncidentKind(incident.kind)]
        why = "" if incident.reason == incident.kind else f" ({self._clean(incident.reason)})"
        return f"{self._clean(named)} {said}{why}, {incident.risk} risk, since {utc(incident.opened_us)}{again}{over}"

    def _next(self, wanted: Wanted) -> str:
        """Return the one command to begin with; an ID that had to be changed to be shown could not be copied."""
        if wanted.operation_id is None:
            contract = self._clean(wanted.incident.contract)
            return f"settled status; then, when it is mended: settled resume --contract {shlex.quote(contract)} --reason …"
        shown = self._clean(wanted.operation_id)
        return f"settled op show {shlex.quote(shown)}" if shown == wanted.operation_id else "settled quarantine list"

    def _body(self, delivery_id: str, kind: str, now_us: int, text: str, then: str, **facts: Any) -> str:
        said = {
            "schema": SCHEMA,
            "delivery_id": delivery_id,
            "kind": kind,
            "at": utc(now_us),
            "ledger": self._ledger,
            "host": self._clean(platform.node()),
            "text": text,
            "next": then,
            **facts,
        }
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))

    def _clean(self, text: str) -> str:
        return one_line(self._redact(text), self._limits.notification_text_max)


def test_body(delivery_id: str, channel: str, now_us: int) -> str:
    """Return the body of a notification that only tries a channel."""
    said = {
        "schema": SCHEMA,
        "delivery_id": delivery_id,
        "kind": "test",
        "at": utc(now_us),
        "host": one_line(platform.node(), 200),
        "text": f"test of the channel {channel}: nothing has happened",
        "next": "settled status",
    }
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def utc(wall_us: int) -> str:
    """Return a moment as ISO 8601 text in UTC, to the second."""
    return datetime.fromtimestamp(wall_us // SECOND_US, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _urgency(incident: Incident) -> int:
    return _RISKS.index(incident.risk) if incident.risk in _RISKS else len(_RISKS)
