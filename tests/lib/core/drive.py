"""A random life of one operation: legal decisions only, of every kind, in any order, under terms that change meanwhile."""

from random import Random
from typing import Any, Final

from settled.core.decide_claim import decide_claim
from settled.core.decide_end import End, EndFacts, decide_end
from settled.core.decide_evidence import decide_fence
from settled.core.decide_late import decide_late
from settled.core.decide_operator import decide_authorize_retry, decide_cancel, decide_confirm, decide_reject, decide_stop_request
from settled.core.decide_unknown import decide_escalation, decide_unattended
from settled.core.errors import TransitionRefusedError
from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.terms import Terms
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import DIGEST, Life, absent, at, committed, decision, guaranteed, prepared_row, terms

IDS: Final = ("pay-1", "pay-2", None)
CONTRACTS: Final = (
    terms(), terms(has_probe=True, max_attempts=3), terms(has_probe=True, confirm_on="probe", max_attempts=2),
    guaranteed(has_probe=True, confirm_on="probe"), guaranteed(), guaranteed(has_probe=True), guaranteed(window=3600),
    guaranteed(has_probe=True, network_drain=120, max_attempts=4),
    guaranteed(isolation="thread", has_probe=True), guaranteed(isolation="async", window=3600, has_probe=True),
    terms(dispatch="handoff", has_probe=True, commit_horizon=60, max_attempts=3), guaranteed(dispatch="handoff"),
    terms(unknown_outcome="keep_unknown", max_attempts=3), guaranteed(unknown_outcome="keep_unknown", has_probe=True, probe_attempts_max=1),
    guaranteed(not_sent_attempts_max=2, max_attempts=9, has_probe=True, probe_attempts_max=2),
)  # fmt: skip


class Drive:
    """Take random steps with a life. `refusals` counts what a person was refused; anything else that is raised is a bug."""

    def __init__(self, random: Random) -> None:
        self.random = random
        deadline = at(random.randrange(1, 20_000)).wall_us if random.random() < 0.3 else None
        self.life = Life(random.choice(CONTRACTS), row=prepared_row(deadline_us=deadline))
        self.refusals = 0

    def step(self) -> str:
        """Let some time pass and one thing happen; return its name."""
        life, random = self.life, self.random
        life.case_changes = {"draw": random.random(), "held": random.random() < 0.05, "wall_highest_us": life.now.wall_us}
        self.pass_time()
        if random.random() < 0.08:
            life.current = random.choice((*CONTRACTS, None))
        likely = {Status.PREPARED: ["claim"] * 12 + ["hold"], Status.DISPATCHED: ["end"] * 8}
        always = ["probe", "probe", "notice", "late", "late", "fence", "person", "unattended"]
        name = random.choice(always + likely.get(life.row.status, ["unattended", "escalate"])) if random.random() > 0.01 else "restore"
        getattr(self, name)()
        return name

    def pass_time(self) -> None:
        seconds = self.random.choice((0, 0, 1, 5, 61, 200, 4000))
        self.life.wait(seconds)
        now = self.life.now
        if self.random.random() < 0.02:  # the host restarts
            self.life.now = Moment(now.wall_us + 90_000_000, 30_000_000, f"boot-{self.random.randrange(1000)}")
        elif self.random.random() < 0.02:  # somebody sets the clock
            self.life.now = now._replace(wall_us=now.wall_us + self.random.choice((-86_400, 86_400)) * 1_000_000)

    # ------------------------------------------------------------------ the worker

    def claim(self) -> None:
        life = self.life
        if life.row.status is not Status.PREPARED or life.current is None:
            return
        if life.row.reason not in (None, Reason.EVIDENCE_BEFORE_DISPATCH) and self.random.random() < 0.5:
            life.happen([life.case.event(E.RELEASED, data={"due": life.now.wall_us})])
        number = next((id_ for id_, one in life.stored.items() if one == life.current), len(life.stored) + 1)
        life.stored[number] = life.current
        life.happen(decide_claim(life.case, self.random.randrange(1, 9), number).events)

    def hold(self) -> None:
        life = self.life
        if life.row.reason == Reason.AWAITING_APPROVAL:
            life.happen([life.case.event(E.APPROVED, data={"due": life.now.wall_us})])
        elif life.row.reason is None and life.row.open_attempts == 0:
            life.happen([life.case.event(E.HELD, data={"reason": Reason.AWAITING_APPROVAL})])

    def end(self) -> None:
        if self.life.row.status is Status.DISPATCHED:
            self.life.happen(decide_end(self.life.case, self.end_facts(self.random.choice((*End, End.RETURNED, End.RETURNED)))))

    def late(self) -> None:
        life = self.life
        given_up = [one.number for one in life.case.history.attempts if one.end is not None and not one.restored]
        if given_up:
            life.happen(decide_late(life.case, self.random.choice(given_up), self.end_facts(self.random.choice(list(End)))))

    def end_facts(self, end: End) -> EndFacts:
        random = self.random
        return EndFacts(
            end=end,
            fence=random.choice((None, *FenceBasis)),
            postcondition=random.choice((None, True, False)),
            output_digest=random.choice((DIGEST, None)) if end is End.RETURNED else None,
            provider_operation_id=random.choice(IDS),
            error=random.choice(("boom", None)) if end is not End.RETURNED else None,
            retryable=random.random() < 0.5,
            by_person=end is End.STOPPED and random.random() < 0.5,
        )

    # ------------------------------------------------------------------ the sweeps

    def probe(self, source: str = "probe") -> None:
        life, random = self.life, self.random
        answers = [
            committed(provider_operation_id=random.choice(IDS), output=1), committed(reference="other"), committed(output={1}),
            absent(), absent(), absent(healthy=False), absent(terminal=False), ProbeResult.pending(), ProbeResult.unknown(),
            ProbeResult.failed("TimeoutError"),
        ]  # fmt: skip
        result = random.choice(answers)
        digest = DIGEST if result.output_text is not None else None
        life.probe(result, postcondition=random.choice((None, True, False)), output_digest=digest, source=source)

    def notice(self) -> None:
        self.probe("webhook")

    def fence(self) -> None:
        life = self.life
        ended = [one.number for one in life.case.history.attempts if one.end is not None or one.restored]
        if ended:
            life.happen(decide_fence(life.case, self.random.choice(ended), self.random.choice(list(FenceBasis)), life.now))

    def unattended(self) -> None:
        if self.life.row.status is Status.OUTCOME_UNKNOWN and self.life.row.reason is None:
            self.life.happen(decide_unattended(self.life.case))

    def escalate(self) -> None:
        due = self.life.row.escalate_us
        if due is not None and due <= self.life.now.wall_us:
            self.life.happen(decide_escalation(self.life.case))

    def restore(self) -> None:
        if self.life.row.status in (Status.PREPARED, Status.DISPATCHED, Status.OUTCOME_UNKNOWN, Status.QUARANTINED):
            self.life.restore()
            self.unattended()

    # ------------------------------------------------------------------ people

    def person(self) -> None:
        life, random = self.life, self.random
        said = decision(life, expected_version=life.row.version - (random.random() < 0.1))
        flags: dict[str, Any] = {"nothing_can_arrive": random.random() < 0.5}
        try:
            match random.choice(("confirm", "reject", "retry", "retry", "cancel", "stop")):
                case "confirm":
                    output, id_ = random.choice((DIGEST, None)), random.choice(IDS)
                    events = decide_confirm(life.case, said, output_digest=output, provider_operation_id=id_)
                case "reject":
                    events = decide_reject(life.case, said, **flags)
                case "retry":
                    events = decide_authorize_retry(life.case, said, **flags, accept_second_effect=random.random() < 0.5)
                case "cancel":
                    events = decide_cancel(life.case, "ana", "changed my mind", "root")
                case _:
                    events = decide_stop_request(life.case, "ana", "wrong customer", "root")
        except TransitionRefusedError:
            self.refusals += 1
            return
        life.happen(events)


def fence_may_be_found(stored: dict[int, Terms], attempt: Any) -> bool:
    """Say independently of the core which open attempts count as unfenced."""
    handed_off = attempt.terms is not None and stored[attempt.terms].dispatch == "handoff"
    return attempt.closed_by is None and attempt.fence is None and not attempt.restored and not handed_off
