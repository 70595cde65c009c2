"""Ways to break the protocol. Each takes one rule out; the search must then find what goes wrong, or it could find nothing at all."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

from settled.core import decide_claim, decide_end, decide_evidence, decide_operator, guarantee
from settled.core.case import Case
from settled.core.decide_claim import Claim
from settled.core.decide_end import End, EndFacts
from settled.core.decide_evidence import Absence
from settled.core.fold import Event
from settled.core.guarantee import Guarantee, KeyVerdict
from settled.core.history import Attempt as Known
from settled.core.moment import Moment
from settled.core.terms import Terms
from settled.core.words import EventType, Status
from tests.model import ledger
from tests.model.setting import Setting, setting
from tests.model.state import Attempt, State, Step
from tests.model.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One rule taken out. `patches` replace names of modules, `world` is one whose shell breaks the rule, `caught` begins the finding."""

    name: str
    setting: Setting
    caught: str
    patches: tuple[tuple[ModuleType, str, Any], ...] = ()
    world: type[World] = World
    quick: bool = False

    @contextmanager
    def applied(self) -> Iterator[World]:
        """Break the rule while the block runs."""
        kept = [(module, name, getattr(module, name)) for module, name, _ in self.patches]
        try:
            for module, name, broken in self.patches:
                setattr(module, name, broken)
            yield self.world(self.setting)
        finally:
            for module, name, whole in kept:
                setattr(module, name, whole)


# ------------------------------------------------------------------ the core without a rule

_judge_absence, _key_verdict, _decide_end, _decide_claim = (
    decide_evidence.judge_absence, guarantee.key_verdict, decide_end.decide_end, decide_claim.decide_claim,
)  # fmt: skip


def _no_fence_needed(_case: Case, attempt: Known) -> Moment | None:
    return attempt.fenced or attempt.dispatched


def _bounds_without(name: str) -> Callable[[Iterable[Terms]], int]:
    names = {"network_drain_us", "commit_horizon_us", "read_lag_us"} - {name}

    def bounds(terms: Iterable[Terms]) -> int:
        every = list(terms)
        return sum(max((getattr(one, each) for one in every), default=0) for each in names)

    return bounds


def _by_arrival(case: Case, _started: Moment) -> Absence:
    return _judge_absence(case, case.now)


def _at_the_bound(case: Case, started: Moment) -> Absence:
    judged = _judge_absence(case, started)
    return Absence(None) if judged.weakness is not None and judged.wait_us == 0 and judged.weakness.value == "too_early" else judged


def _no_window(_case: Case) -> KeyVerdict:
    return KeyVerdict(Guarantee.HOLDS)


def _only_decided(case: Case) -> KeyVerdict:
    return _key_verdict(case)._replace(guarantee=Guarantee.HOLDS, enter_by_boot_us=None)


def _no_enter_by(case: Case, worker: int, terms_id: int, *, held: bool = False) -> Claim:
    return _decide_claim(case, worker, terms_id, held=held)._replace(enter_by_boot_us=None)


def _any_isolation(case: Case) -> KeyVerdict:
    stored = {number: _process(one) for number, one in case.stored.items()}
    return _whole_window(replace(case, current=_process(case.terms), stored=stored))


_whole_window = guarantee._window


def _process(terms: Terms) -> Terms:
    return replace(terms, isolation="process")


def _ends_as(was: End, becomes: End) -> Callable[[Case, EndFacts], tuple[Event, ...]]:
    def decided(case: Case, facts: EndFacts) -> tuple[Event, ...]:
        return _decide_end(case, facts._replace(end=becomes) if facts.end is was else facts)

    return decided


def _never(*_anything: Any, **_more: Any) -> None:
    return None


def _nothing(*_anything: Any, **_more: Any) -> tuple[Event, ...]:
    return ()


def _always(*_anything: Any, **_more: Any) -> bool:
    return True


def _any_version(case: Case, decision: Any, verb: str) -> None:
    _checked(case, replace(decision, expected_version=case.row.version), verb)


_checked = decide_operator._check


def _cancel_anyhow(case: Case, actor: str, reason: str, os_user: str) -> tuple[Event, ...]:
    return (case.event(EventType.CANCELLED, Status.CANCELLED),)


def _not_withdrawn(case: Case, worker: int, terms_id: int, *, held: bool = False) -> Claim:
    claim = _decide_claim(case, worker, terms_id, held=held)
    return claim if claim.dispatches or not case.row.open_attempts else Claim((), False)


# ------------------------------------------------------------------ the shell without a rule


class Observes(World):
    """Reads that an attempt was not entered, and does not revoke it."""

    def _take_over(self, state: State, number: int, attempt: Attempt) -> Step:
        label, kind, after = super()._take_over(state, number, attempt)
        return label, kind, self._with(after, number, after.attempts[number - 1]._replace(slot=attempt.slot))


class BelievesAfterABoot(World):
    """Believes a recorder that was written before the last boot."""

    def _power_cut(self, state: State) -> State:
        after = super()._power_cut(state)
        kept = tuple(one._replace(slot="claimed", rebooted=False) for one in after.attempts)
        return after._replace(attempts=kept)


class NoOwnTimer(World):
    """Leaves the deadline to the worker alone: a runner without one goes on."""

    def _time(self, state: State) -> Iterator[Step]:
        ran = tuple(one._replace(ran=0) if one.owner != "up" else one for one in state.attempts)
        yield from super()._time(state._replace(attempts=ran))


class StartsBeforeItRecords(World):
    """Starts the handler before the dispatch is on disk: a kill in between leaves the row prepared and the handler running."""

    def _claim(self, state: State) -> Iterator[Step]:
        for label, kind, after in super()._claim(state):
            yield label, kind, after
            if len(after.attempts) > len(state.attempts):
                lost = after.attempts[-1]._replace(code="sent", slot="lost", bytes_age=0, late=True)
                yield "a handler starts, its dispatch is lost", "fault", state._replace(attempts=(*state.attempts, lost))


class RecordsUnguarded(World):
    """Writes an end without asking whether the row is still its own."""

    def _is_mine(self, state: State, number: int) -> bool:
        return True


_PROBED = setting("probe", "process", rejects=False, power_cuts=False)
_KEYED = setting("key", "process", rejects=False, power_cuts=False)
_PLAIN = setting("none", "process")
_TWICE = setting("none", "process", attempts=2)

MUTATIONS: Final = (
    Mutation(name="an absence needs no fence", setting=setting("probe", "thread", power_cuts=False, rejects=False), caught="I", quick=True,
             patches=((decide_evidence, "quiet_since", _no_fence_needed),)),
    Mutation(name="an absence need not wait for the network drain", setting=_PROBED.but(commit=0, lag=0), caught="I", quick=True,
             patches=((decide_evidence, "bounds_us", _bounds_without("network_drain_us")),)),
    Mutation(name="an absence need not wait for the commit horizon", setting=_PROBED.but(drain=0, lag=0), caught="I", quick=True,
             patches=((decide_evidence, "bounds_us", _bounds_without("commit_horizon_us")),)),
    Mutation(name="an absence need not wait for the read lag", setting=_PROBED.but(drain=0, commit=0), caught="I", quick=True,
             patches=((decide_evidence, "bounds_us", _bounds_without("read_lag_us")),)),
    Mutation(name="an absence is judged by when it arrives", setting=_PROBED, caught="I",
             patches=((decide_evidence, "judge_absence", _by_arrival),)),
    Mutation(name="an absence counts at exactly the bound", setting=_PROBED, caught="I",
             patches=((decide_evidence, "judge_absence", _at_the_bound),)),
    Mutation(name="unbound evidence is accepted",
             setting=_PROBED, caught="I2", quick=True, patches=((decide_evidence, "_weakness", _never),)),
    Mutation(name="the key's window is not asked for", setting=_KEYED, caught="I1", patches=((guarantee, "_window", _no_window),)),
    Mutation(name="the window is asked for at the decision only, not at the claim", setting=_KEYED, caught="I1",
             patches=((decide_claim, "key_verdict", _only_decided),)),
    Mutation(name="a claim sets no time by which to enter", setting=_KEYED, caught="I1",
             patches=((ledger, "decide_claim", _no_enter_by),)),
    Mutation(name="a finite window is trusted in a thread", setting=setting("key", "thread", rejects=False, power_cuts=False), caught="I1",
             patches=((guarantee, "_window", _any_isolation),)),
    Mutation(name="a key is taken for guaranteed that is not", setting=_TWICE, caught="I1",
             patches=((guarantee, "_guaranteed", _always), (guarantee, "_window", _no_window))),
    Mutation(name="a lost lease goes back to prepared", setting=_PLAIN, caught="I", quick=True,
             patches=((ledger, "decide_end", _ends_as(End.LEASE_LOST, End.NEVER_ENTERED)),)),
    Mutation(name="a timeout is taken for a failure", setting=_PLAIN, caught="I3", quick=True,
             patches=((ledger, "decide_end", _ends_as(End.TIMED_OUT, End.REJECTED)),)),
    Mutation(name="an exception is taken for not sent", setting=_PLAIN, caught="I", quick=True,
             patches=((ledger, "decide_end", _ends_as(End.RAISED, End.NOT_SENT)),)),
    Mutation(name="a person may reject at any time",
             setting=_PLAIN, caught="I3", quick=True, patches=((decide_operator, "_check_quiet", _never),)),
    Mutation(name="a person decides on any version", setting=_PLAIN.but(two_people=True), caught="I",
             patches=((decide_operator, "_check", _any_version),)),
    Mutation(name="a retry may be cancelled while an attempt is open", setting=_KEYED, caught="I3",
             patches=((ledger, "decide_cancel", _cancel_anyhow),)),
    Mutation(name="a retry whose window ends is not withdrawn", setting=_KEYED, caught="I4",
             patches=((ledger, "decide_claim", _not_withdrawn),)),
    Mutation(name="kept evidence is not merged", caught="I",
             setting=setting("both", "thread", window=None, rejects=False, power_cuts=False, probes=1),
             patches=((decide_end, "_merge_kept", _never),)),
    Mutation(name="nothing ends the waiting", setting=_PROBED.but(hangs=False, drain=0, commit=0, probes=1), caught="I4",
             patches=((ledger, "decide_escalation", _nothing), (decide_evidence, "_after_unusable", _nothing))),
    Mutation(name="entry is observed, not contested", setting=_PLAIN, caught="I", quick=True, world=Observes),
    Mutation(name="a recorder is believed after a boot", setting=_PLAIN, caught="I", quick=True, world=BelievesAfterABoot),
    Mutation(name="the deadline is the worker's alone", setting=_KEYED, caught="I1", world=NoOwnTimer),
    Mutation(name="the handler starts before its dispatch is recorded",
             setting=_PLAIN, caught="I", quick=True, world=StartsBeforeItRecords),
    Mutation(name="an end is written unguarded", setting=_PLAIN, caught="I", quick=True, world=RecordsUnguarded),
)  # fmt: skip

