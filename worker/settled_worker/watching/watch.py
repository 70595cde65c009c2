"""Put together how one worker is looked at, as its settings say; a worker that nobody looks at has none of it."""

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from settled.config.settings import Settings
from settled.core.fold import Event
from settled.core.row import Row
from settled.execution.job import Job, Report
from settled.store.reads import read_trace
from settled.tracing import attempt_spans
from settled_worker.journal import log_moves
from settled_worker.watching.answer import Answer, Pages, plain
from settled_worker.watching.counting import Contracts, Counting
from settled_worker.watching.exposing import CONTENT_TYPE, Exposition, check_extra
from settled_worker.watching.reading import read_gauges
from settled_worker.watching.signs import Held, Signs
from settled_worker.watching.textfile import Textfile

if TYPE_CHECKING:
    from settled_worker.watching.endpoint import Endpoint

_HELD_SECONDS = 1.0


class Watch:
    """What counts, and what answers. `start` raises ConfigurationError for what no retry can mend."""

    def __init__(self, settings: Settings, signs: Signs, contracts: Iterable[str]) -> None:
        self.signs = signs
        self._counting: Counting | None = None
        self._parts: list[Endpoint | Textfile] = []
        self._spans = attempt_spans(self._parents)
        http, metrics = settings.http, settings.metrics
        pages = {"/healthz": lambda: plain(*signs.lives()), "/readyz": lambda: plain(*signs.is_ready())}
        if http.metrics or metrics.textfile is not None:
            check_extra("http.metrics" if http.metrics else "metrics.textfile")
            text = self._texts(contracts, metrics.contracts_max)
            if http.metrics:
                pages["/metrics"] = lambda: Answer(200, CONTENT_TYPE, text())
            if metrics.textfile is not None:
                self._parts.append(Textfile(metrics.textfile, metrics.textfile_seconds, text))
        if http.listen is not None:
            self._parts.append(self._endpoint(http.listen, pages))

    def start(self) -> None:
        """Answer from now on."""
        for part in self._parts:
            part.start()

    def close(self) -> None:
        """Answer no more."""
        for part in self._parts:
            part.close()

    def started(self, jobs: Sequence[Job]) -> None:
        """Hear of attempts that are handed to handlers."""
        if self._counting is not None:
            self._counting.started(jobs)
        self._spans.started(jobs)

    def ended(self, reports: Sequence[Report]) -> None:
        """Hear how handlers and probes ended."""
        if self._counting is not None:
            self._counting.ended(reports)
        self._spans.ended(reports)

    def moved(self, row: Row, events: Sequence[Event]) -> None:
        """Log and count the move of one operation."""
        log_moves(row, events)
        if self._counting is not None:
            self._counting.moved(row, events)

    def _texts(self, declared: Iterable[str], contracts_max: int) -> Held:
        signs, contracts = self.signs, Contracts(declared, contracts_max)
        counting = self._counting = Counting(contracts)
        exposition = Exposition(counting, lambda: signs.values() | read_gauges(signs.ledger, signs.clock, contracts))
        return Held(exposition.text, signs.clock, _HELD_SECONDS)

    def _parents(self, rows: Iterable[int]) -> dict[int, str]:
        with self.signs.ledger.read() as transaction:
            found = {row: read_trace(transaction, row) for row in rows}
        return {row: trace for row, trace in found.items() if trace is not None}

    def _endpoint(self, listen: str, pages: Pages) -> "Endpoint":
        from settled_worker.watching.endpoint import Endpoint  # a server and its libraries, for the few that listen

        return Endpoint(listen, pages, self.signs.clock, self.signs.ledger.limits)


def our_version() -> str:
    """Return the version that is installed."""
    try:
        return version("settled")
    except PackageNotFoundError:
        return "unknown"
