"""Write docs/states.md: the state diagram, drawn from the transition table itself. `--check` only compares it."""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from settled.core.transition import TRANSITIONS
from settled.core.words import SETTLED, Status

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"

HEAD = """\
# The states of an operation

Drawn by `make diagram` from `settled.core.transition`, the one place that says what may follow a status. Events that leave the
status as it is (evidence kept beside a settled operation, notes, fences) are left out; `core/fold.py` says what they change.
"""

MEANINGS = {
    Status.PREPARED: "the worker acts next, when it is due, unless it is held with a reason",
    Status.DISPATCHED: "a handler is at work, under a lease",
    Status.OUTCOME_UNKNOWN: "the reconcile sweep acts next: it probes",
    Status.QUARANTINED: "a person acts next; probes may still read, nothing is dispatched",
    Status.CONFIRMED: "it happened, at least once",
    Status.REJECTED: "it surely did not happen",
    Status.CANCELLED: "it was called off while no attempt was open",
}


def page() -> str:
    """Return the page: a mermaid diagram with one arrow for each pair of statuses, and the same as a table."""
    moves: dict[tuple[Status | None, Status], list[str]] = defaultdict(list)
    for (status, event), targets in TRANSITIONS.items():
        for target in targets:
            if target is not status:
                moves[status, target].append(event.value)
    arrows = ["```mermaid", "stateDiagram-v2", "    [*] --> prepared: submitted"]
    rows = ["| from | to | on |", "|---|---|---|"]
    for (status, target), events in moves.items():
        said = ", ".join(sorted(set(events)))
        if status is not None:
            shown = "<br/>".join(sorted(set(events)))
            arrows.append(f"    {status.value} --> {target.value}: {shown}")
        rows.append(f"| {'–' if status is None else f'`{status.value}`'} | `{target.value}` | {said} |")
    arrows += [f"    {status.value} --> [*]" for status in Status if status in SETTLED]
    meanings = ["| status | what it means |", "|---|---|", *(f"| `{status.value}` | {MEANINGS[status]} |" for status in Status)]
    return "\n".join([HEAD, *meanings, "", *arrows, "```", "", *rows, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 where the page differs")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/states.md is not what the transition table says. Nothing was written. Run: make diagram", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
