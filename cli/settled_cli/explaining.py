"""Say in words why an operation stands where it stands: from its row, its history and the stored terms, without user code.

Promise: reads only, and asks the core for every rule that it names.
"""

from dataclasses import replace
from typing import Final

from settled.app import App
from settled.core.case import Case
from settled.core.decide_evidence import quiet_since
from settled.core.guarantee import Guarantee, key_verdict
from settled.core.history import Attempt, Observation
from settled.core.moment import surely_elapsed_us
from settled.core.terms import bounds_us
from settled.core.words import SETTLED, EventType, Isolation, Reason, Status
from settled.steps.masks import mask_for
from settled.steps.pausing import Pause, described, holding
from settled.steps.resolve import must_find
from settled.store.pauses import active
from settled_cli.render import cell, utc
from settled_cli.workers import live_workers

WHERE: Final = {
    Status.PREPARED: "is prepared: it waits for a worker",
    Status.DISPATCHED: "is dispatched: its handler runs, or its owner was lost and is being looked for",
    Status.OUTCOME_UNKNOWN: "has an unknown outcome: it may have happened or not, and is not repeated on a guess",
    Status.QUARANTINED: "is quarantined: automatic work has ended, a person must decide",
    Status.CONFIRMED: "is confirmed: the effect happened at least once",
    Status.REJECTED: "is rejected: the effect surely did not happen",
    Status.CANCELLED: "is cancelled: it was called off while nothing of it was open",
}
REASONS: Final = {
    Reason.NO_PROBE: "the contract has no probe and no idempotency guarantee that holds, so nothing can find out",
    Reason.PROBE_BUDGET_SPENT: "the probe was asked as often as the contract allows, and could not tell",
    Reason.DEADLINE_SPENT: "its deadline passed while the outcome was unknown",
    Reason.UNKNOWN_TOO_LONG: "it has been unknown for longer than unknown_age_max; the probe is still asked",
    Reason.POSTCONDITION_FAILED: "the destination shows the effect, but its postcondition is not met",
    Reason.CONFLICTING_EVIDENCE: "its evidence contradicts itself; only a person leads it out of here",
    Reason.NEEDS_REVIEW: "the handler asked for a person",
    Reason.RESTORED: "the ledger was restored from a copy, so that what was sent after the copy is not known",
    Reason.AWAITING_APPROVAL: "a person must approve it before it is dispatched",
    Reason.CONTRACT_MISMATCH: "it was submitted for another version of the contract",
    Reason.NOT_SENT_LIMIT: "it could not be sent as often as the contract allows to try",
    Reason.EVIDENCE_BEFORE_DISPATCH: "the destination says that it happened before anything was dispatched here",
    Reason.STOP_REQUESTED: "a person asked for its handler to be stopped",
    Reason.KEPT_UNKNOWN: "the contract leaves it unknown to its host (keep_unknown)",
}
_WEAKNESSES: Final = {
    "no_fence": "an absence counts only once the attempt is fenced",
    "too_early": "an absence counts only after fence + network_drain + commit_horizon + read_lag",
    "not_terminal": "the answer does not say that it cannot commit later",
    "unhealthy": "the read path was not shown to work",
    "reference_mismatch": "the answer speaks of another reference",
    "reference_missing": "the answer does not echo the provider reference",
    "after_return": "the handler had returned, so an absence contradicts it",
    "not_storable": "its output is not strict JSON",
    "undated": "a notice does not say when it was read, so that an absence in it proves nothing",
}


def explain_operation(app: App, operation_id: str) -> list[str]:
    """Return sentences about one operation. Raises OperationNotFoundError."""
    shell = app.shell
    now = shell.clock.now()
    with app.ledger.read() as transaction:
        row = must_find(transaction, operation_id)
        case = shell.full_case(transaction, row, now)
        mask = mask_for(shell, transaction, row, case.history, None)
        held = holding(active(transaction), row.contract, row.queue)
    if case.current is None:  # no user code is imported here: what the last dispatch or submission stored stands for it
        case = replace(case, current=case.stored.get(row.terms) if row.terms is not None else None)
    sentences = explain(case)
    if row.status not in SETTLED:
        sentences += [_held(one) for one in held]
    if row.status not in SETTLED and app.ledger.misplaced:
        sentences.append("The ledger is a copy, or was moved (restored): nothing is dispatched from it until settled db adopt --reason …")
    served = any(row.contract in worker.contracts for worker in live_workers(app))
    if row.status not in SETTLED and not served:
        sentences.append(f"No live worker lists the contract {row.contract} (no_handler): nothing moves by itself until one runs.")
    return [mask.text(sentence) for sentence in sentences]


def _held(pause: Pause) -> str:
    option = "" if pause.scope == "all" else f" --{pause.scope} {pause.name}"
    return (
        f"It is paused: {described(pause.scope, pause.name)}, since {cell(pause.at)}, by {pause.actor}, reason {pause.reason}. "
        f"It is not dispatched until settled resume{option} --reason …"
    )


def explain(case: Case) -> list[str]:
    """Return what there is to say of a case, in the order in which a person asks: where, why, which attempts, what next."""
    row = case.row
    sentences = [f"Operation {row.operation_id} of {row.contract} {WHERE[row.status]}."]
    if row.reason is not None:
        sentences.append(f"Reason {row.reason}: {REASONS.get(Reason(row.reason), 'see settled op events')}.")
    if row.error is not None:
        sentences.append(f"Its last error was: {row.error}.")
    sentences += [_attempt(case, attempt) for attempt in case.history.attempts]
    if row.status not in SETTLED:
        sentences += _last_answer(case.history.observations)
        sentences += _next(case)
    if row.duplicate_suspected:
        sentences.append("Two confirmations name different provider operation IDs: a second effect is suspected.")
    return sentences


def _attempt(case: Case, attempt: Attempt) -> str:
    ended = (
        "has not ended here"
        if attempt.end is None
        else f"ended as {attempt.end.value} at {utc(attempt.ended.wall_us) if attempt.ended else '?'}"
    )
    said = f"Attempt {attempt.number} was dispatched at {utc(attempt.dispatched.wall_us)} and {ended}"
    if attempt.closed_by is not None:
        return f"{said}; it is closed ({attempt.closed_by.value}): it surely had no effect."
    if case.row.status in SETTLED or (case.row.status is Status.DISPATCHED and attempt.number == case.row.attempt):
        return f"{said}."
    if attempt.fence is not None:
        return f"{said}; it is open, fenced ({attempt.fence.value}): its code can send no more, what it sent may have taken effect."
    return f"{said}; it is open and may_still_run: {_helpful_fence(case, attempt)}."


def _helpful_fence(case: Case, attempt: Attempt) -> str:
    terms = case.terms_of(attempt)
    if attempt.restored:
        return "it is known only from a restored copy, so no fence is possible, only evidence or a person"
    if terms is not None and terms.handed_off:
        return "it was handed off to another service, so no fence is possible, only its horizon and the probe"
    isolation = (
        ""
        if terms is None
        else f" It ran in {terms.isolation} isolation, which no one can stop from outside." * (terms.isolation != "process")
    )
    return f"the end of its process and of all that it started would fence it (process_gone).{isolation}".rstrip(".")


def _last_answer(observations: tuple[Observation, ...]) -> list[str]:
    answers = [seen for seen in observations if seen.type.value.startswith("probe_")]
    if not answers:
        return []
    last = answers[-1]
    why = _WEAKNESSES.get(str(last.data.get("why")), "")
    weak = f": {why} ({last.data['why']})" if why else ""
    return [f"The last answer, at {utc(last.at_us)} from {last.source}, was {last.type.value}{weak}."]


def _next(case: Case) -> list[str]:
    row = case.row
    match row.status:
        case Status.PREPARED if row.reason == Reason.AWAITING_APPROVAL:
            until = f" It expires at {utc(row.deadline_us)}." if row.deadline_us is not None else ""
            return [f"To decide: settled op approve {row.operation_id}, or settled op deny {row.operation_id}.{until}"]
        case Status.PREPARED if row.reason is None:
            return [f"It is due for dispatch at {utc(row.due_us)}."]
        case Status.PREPARED:
            until = f" It ends by its deadline at {utc(row.deadline_us)}." if row.deadline_us is not None else ""
            return [f"Nothing dispatches it while it is held. To call it off: settled op cancel {row.operation_id}.{until}"]
        case Status.DISPATCHED:
            return _running(case)
        case Status.OUTCOME_UNKNOWN | Status.QUARANTINED:
            probe = [f"The next probe is due at {utc(row.due_us)}."] if row.due_us is not None else ["No probe is scheduled."]
            waits = row.status is Status.OUTCOME_UNKNOWN and row.escalate_us is not None
            told = [f"A person is told at {utc(row.escalate_us)} at the latest."] if waits else []
            return [*_key(case), *probe, *told, *_person(case)]
        case _:
            return []


def _running(case: Case) -> list[str]:
    """Say until when a handler may run, and what becomes of it if its owner dies or a person stops it."""
    row, attempt = case.row, case.history.attempt(case.row.attempt)
    terms = None if attempt is None else case.terms_of(attempt)
    sentences = []
    if attempt is not None and terms is not None:
        sentences.append(
            f"Its time is over at {utc(attempt.dispatched.wall_us + terms.timeout_us)}: without an end by then its outcome is unknown."
        )
    sentences.append("If its owner dies before, the next leases sweep decides what is proved of it.")
    if row.reason == Reason.STOP_REQUESTED:
        return [*sentences, "A person asked for it to be stopped: its owner ends it, and its outcome is unknown then."]
    return [*sentences, f"To stop it: settled op stop {row.operation_id}; its outcome is unknown then."]


_KEYS: Final = {
    Guarantee.HOLDS: "The provider's key guarantee holds: it may be dispatched again with the same key.",
    Guarantee.WAIT_FOR_FENCE: "The key guarantee would hold, but a process of an earlier attempt may still be alive: its fence is awaited.",
    Guarantee.NO_BUDGET: "The key guarantee does not help: the contract's attempts are spent.",
    Guarantee.NOT_UNATTENDED: "Nothing is dispatched again without a person: it was stopped, restored, or authorized by one before.",
    Guarantee.AFTER_RETURN: "The key guarantee is not used: an attempt returned, and its result was not accepted.",
    Guarantee.ISOLATION: "The key guarantee is not used: its window is finite, and in {isolation} isolation code may send after it. "
    "Use isolation='process'.",
    Guarantee.WINDOW_OVER: "The key guarantee is over: the last byte of another attempt could fall outside its window.",
}


def _key(case: Case) -> list[str]:
    """Say what the provider's idempotency key allows, where the contract guarantees one."""
    binding = case.binding_terms()
    if not any(terms.key_guaranteed for terms in binding):
        return []
    verdict = key_verdict(case).guarantee
    if case.row.status is Status.QUARANTINED and verdict in (Guarantee.HOLDS, Guarantee.WAIT_FOR_FENCE):
        return []  # quarantine dispatches nothing, whatever the key would allow
    sentence = _KEYS.get(verdict)
    weak = next((terms.isolation for terms in binding if terms.isolation != Isolation.PROCESS), Isolation.PROCESS)
    return [] if sentence is None else [sentence.format(isolation=weak)]


def _person(case: Case) -> list[str]:
    """Say from when a person may decide, by the same bounds that the decision itself checks."""
    bounds, latest = bounds_us(case.binding_terms()), 0
    for attempt in case.history.open_attempts:
        since = quiet_since(case, attempt)
        if since is None:
            return [
                f"A person may confirm it now; reject and authorize-retry are refused while attempt {attempt.number} may still run, "
                f"unless it is asserted that nothing can arrive any more."
            ]
        latest = max(latest, bounds - surely_elapsed_us(since, case.now))
    when = "now" if latest <= 0 else f"from {utc(case.now.wall_us + latest)} on"
    happened = any(seen.type in (EventType.PROBE_COMMITTED, EventType.LATE_RETURN) for seen in case.history.observations)
    against = " A retry is refused while an observation says that it happened." if happened else ""
    return [f"A person may confirm it now, and reject it or authorize a retry {when} (version {case.row.version}).{against}"]
