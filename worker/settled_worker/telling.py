"""Tell people what changes around the worker: that it lives, and what is paused."""

from settled.core.errors import LedgerUnavailableError, SettledError
from settled.core.moment import SECOND_US
from settled.core.paused import NOTHING, Paused
from settled.logs import get_log
from settled.presence import Presence
from settled.shell import Shell
from settled.steps.pausing import to_pause
from settled.store.pauses import active, read_paused

log = get_log("settled.worker")


class Telling:
    """What was told last. Nothing in here raises for a store that cannot be used now: it is told at a later tick.

    `unwritable` says why this incarnation's row could not be refreshed, so that an idle worker sees it, too.
    """

    def __init__(self, shell: Shell, presence: Presence) -> None:
        self._shell, self._presence = shell, presence
        self._seen_boot_us = 0
        self._paused = NOTHING
        self.unwritable: str | None = None

    def alive(self, boot_us: int) -> None:
        """Keep the row of this incarnation fresh, seldom."""
        if boot_us - self._seen_boot_us < self._shell.limits.worker_row_seconds * SECOND_US:
            return
        try:
            if self._seen_boot_us:
                self._presence.seen()
            self._seen_boot_us = boot_us
            self.unwritable = None
        except SettledError as error:
            self.unwritable = f"the store cannot be written: {error}"
            log.warning("worker.row_not_refreshed", error=str(error))

    def paused(self, paused: Paused) -> None:
        """Say what is paused whenever that changes, with who did it and why."""
        if paused == self._paused:
            return
        try:
            with self._shell.ledger.read() as transaction:
                now, found = read_paused(transaction), active(transaction)
        except LedgerUnavailableError:
            return  # the next tick meets the same error, where it is told
        self._paused = now
        log.warning("worker.pauses_changed", paused=[str(to_pause(one)) for one in found])
