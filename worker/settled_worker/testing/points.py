"""Where a certification kills a worker, and how the host fails it meanwhile. Pure: names, words for people, and the plan of rounds."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from settled.testing.sandbox import Trouble

NONE: Final = "none"

POINTS: Final[Mapping[str, str]] = {
    NONE: "not killed",
    "before submit": "before the commit that records the request; it is submitted again",
    "after submit": "after the commit that records the request, before its caller heard of it; it is submitted again",
    "before claim": "before the commit that records the dispatch; its recorder slot is written",
    "after claim": "after the commit that records the dispatch, before the handler is started",
    "entered": "when the handler was entered, before its first line",
    "sending": "when the handler had announced that it sends",
    "mid-request": "while the destination works on the request",
    "after commit": "after the destination committed, before its answer",
    "returned": "when the handler had returned, before the worker heard of it",
    "before end": "before the commit that records how the attempt ended",
    "after end": "after the commit that records how the attempt ended",
    "before takeover": "a second worker, before the commit that takes over from the first",
    "after takeover": "a second worker, after the commit that takes over from the first",
    "before answer": "before the commit that records a probe's answer",
    "after answer": "after the commit that records a probe's answer",
}
IN_HANDLER: Final = frozenset({"entered", "sending", "returned"})
AT_DESTINATION: Final[Mapping[str, str]] = {"mid-request": "received", "after commit": "committed"}
BY_THE_SUBMITTER: Final = frozenset({"before submit", "after submit"})
BY_THE_SECOND: Final = frozenset({"before takeover", "after takeover"})

HOSTS: Final[Mapping[str, str]] = {
    NONE: "the host is well",
    "busy": "another program holds the ledger's write lock for a second",
    "full": "the disk is full for a second",
    "clock": "the wall clock is set back by an hour",
    "outage": "no worker runs for a while, and starts again inside the key's window",
    "long outage": "no worker runs until the key's window is over",
}
OUTAGES: Final = frozenset({"outage", "long outage"})
"""Played for contracts with a finite key window, where a request may have arrived: an outage tells nothing new anywhere else."""
_BEFORE_AN_OUTAGE: Final = frozenset({"mid-request", "after commit"})
_IN_AN_OUTAGE: Final = frozenset({NONE, "answer lost", "lost before", "error after", "committed late"})


class Round(NamedTuple):
    """One worker's life and what follows: every trouble is one operation of it."""

    point: str
    host: str
    troubles: tuple[Trouble, ...]


def plan_rounds(troubles: Iterable[Trouble], *, points: Iterable[str], hosts: Iterable[str], quick: bool, per_round: int) -> list[Round]:
    """Return every point × host × trouble, so many troubles to a round; `quick`: each point on a well host, each host without a kill."""
    every, chosen = list(troubles), list(hosts)
    return [
        Round(point, host, group)
        for point in points
        for host in chosen
        if (point in _BEFORE_AN_OUTAGE if host in OUTAGES else not quick or NONE in (point, host))
        for group in _groups([one for one in every if host not in OUTAGES or one.name in _IN_AN_OUTAGE], per_round)
    ]


def _groups(troubles: list[Trouble], per_round: int) -> list[tuple[Trouble, ...]]:
    return [tuple(troubles[start : start + per_round]) for start in range(0, len(troubles), per_round)]
