"""How much this worker may claim: free slots, runners that are ready, and contracts whose handlers hang."""

from typing import Final

from settled.app import App
from settled.clock import Clock
from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.core.words import Isolation
from settled.execution.pool import Execution
from settled.logs import get_log
from settled.steps.refusing import tell_refused

log = get_log("settled.worker")
_FIRST_RUNNER_SECONDS_MAX: Final = 10.0  # then a claim shows what is wrong


class Capacity:
    """The room of one worker. `abandoned_max` may be changed while it works."""

    def __init__(self, app: App, execution: Execution, clock: Clock, abandoned_max: int) -> None:
        self._app, self._execution, self._clock = app, execution, clock
        self.abandoned_max = abandoned_max
        self._told: set[str] = set()
        self._started_us = clock.monotonic_us()
        self._first_runner_seen = False  # once: later ones start while others serve, or after a supervisor was lost

    def room(self, isolation: Isolation) -> int:
        """While the first runner still imports the app its time would count against a handler's: claim none, for a while."""
        if isolation is Isolation.PROCESS and not self._first_runner_seen:
            waited_us = self._clock.monotonic_us() - self._started_us
            self._first_runner_seen = self._execution.ready_runners > 0 or waited_us >= _FIRST_RUNNER_SECONDS_MAX * SECOND_US
            if not self._first_runner_seen:
                return 0
        return self._execution.free(isolation)

    def refuses(self, contract: str) -> bool:
        """At the limit of abandoned handlers those contracts wait whose handlers hang; the others go on."""
        execution = self._execution
        return execution.abandoned >= self.abandoned_max and execution.abandoned_of(contract) > 0

    def tell_refused(self, me: int) -> None:
        """Tell people which contracts wait here because their handlers hang, whenever that changes. `me` is this worker's row."""
        refused = {name for name in self._app.contracts if self.refuses(name)} if self._execution.abandoned else set()
        if refused == self._told:
            return
        log.warning("worker.contracts_wait", reason="abandoned_limit", contracts=sorted(refused), abandoned=self._execution.abandoned)
        try:
            tell_refused(self._app.shell, me, refused)
            self._told = refused
        except LedgerUnavailableError as error:
            log.warning("worker.refusal_not_told", error=str(error))
