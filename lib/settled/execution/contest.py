"""Ask the flight recorder, for the worker, what an attempt has come to that a runner has in hand.

Promise: an attempt is only said to be untouched or taken back where its slot shows it; a recorder that cannot be asked proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from settled.execution.job import Job
from settled.execution.recorder import Phase, SlotState
from settled.logs import get_log

log = get_log("settled.execution")


class RevokeRecorder(Protocol):
    """The part of the flight recorder that a worker asks about what runs elsewhere."""

    @property
    def path(self) -> Path: ...
    def read(self, slot: int) -> SlotState | None: ...
    def revoke(self, slot: int, row: int, attempt: int, *, announces_sending: bool = False) -> Phase | None: ...


class Contest:
    """The worker's side of the contest for the entry."""

    def __init__(self, recorder: RevokeRecorder | None) -> None:
        self._recorder = recorder

    @property
    def is_held(self) -> bool:
        """Whether there is a recorder in which it can be held."""
        return self._recorder is not None

    def revoke(self, job: Job, *, announces_sending: bool = False) -> Phase | None:
        """Take the right to enter away, and with `announces_sending` the right to send; return what it had come to.

        CLAIMED: it was not entered and will not be. None: nothing may be concluded.
        """
        if self._recorder is None or job.slot is None:
            return None
        try:
            return self._recorder.revoke(job.slot, job.row, job.attempt, announces_sending=announces_sending)
        except Exception:
            log.exception("execution.revoke_failed", operation_id=job.operation_id, attempt=job.attempt)
            return None

    def is_untouched(self, job: Job) -> bool:
        """Whether nobody has entered it or taken it back until now. Says nothing about the next moment where its runner may live."""
        if self._recorder is None or job.slot is None:
            return False
        return self._recorder.read(job.slot) == SlotState(job.row, job.attempt, Phase.CLAIMED, False)
