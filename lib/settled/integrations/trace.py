"""A trace of runs for developers: one JSON line for each event, with a number that shows a gap.

Promise: the trace is no record. The record is in the ledger; a trace that is lost, cut or full changes nothing.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from settled.logs import get_log
from settled.store.agent_runs import RunEvent

log: Final = get_log("settled.agents")


def write_trace(path: Path, events: Iterable[RunEvent]) -> None:
    """Append events to a file that only its owner may read. Never raises: a line that cannot be written is logged as lost."""
    lines = "".join(json.dumps(trace_line(event), ensure_ascii=True) + "\n" for event in events)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, lines.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("agent.trace_lost", path=str(path), error=str(error))


def trace_line(event: RunEvent) -> dict[str, object]:
    """Return an event as plain data, without what is empty."""
    return {name: value for name, value in event._asdict().items() if value is not None}


def check_trace(path: Path) -> list[str]:
    """Return a sentence for each line that is no event and each gap in the numbers of a run; none for a whole trace."""
    findings, last = list[str](), dict[str, int]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            event = json.loads(line)
            run_id, sequence = str(event["run_id"]), int(event["sequence"])
        except (ValueError, KeyError, TypeError):
            findings.append(f"line {number} is no event")
            continue
        expected = last.get(run_id, 0) + 1
        if sequence != expected:
            findings.append(f"line {number}: run {run_id!r} goes on with event {sequence}, not {expected}")
        last[run_id] = sequence
    return findings
