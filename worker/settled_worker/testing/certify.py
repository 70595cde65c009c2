"""Certify a contract: play every round, judge every case, and say which claims of the contract did not hold.

Promise: real workers, real processes, a real ledger, SIGKILL; the destination's own count decides. A certificate says what was
tried and what was seen, and nothing about anything else.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from settled.app import App
from settled.contract import EffectContract
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.core.text import one_line, safe_str
from settled.steps.submit import check_order
from settled.testing.report import SAFE, UNSAFE, SafetyCheck, SafetyReport
from settled.testing.sandbox import BEYOND, TROUBLES, Sandbox
from settled_worker.testing.judging import Claim, Failure, Seen, judge, judge_claims
from settled_worker.testing.points import HOSTS, NONE, OUTAGES, POINTS, Round, plan_rounds
from settled_worker.testing.rounds import play
from settled_worker.testing.shortening import KEY_SECONDS, has_a_window, scale, shortened_keys
from settled_worker.testing.starting import RoundFailedError, Setting

PER_ROUND: Final = 7
_SAID_MAX: Final = 300
Told = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a certification saw."""

    contract: str
    version: str
    quick: bool
    cases: tuple[Seen, ...]
    failures: tuple[Failure, ...]
    claims: tuple[Claim, ...]
    beyond: tuple[Seen, ...]
    not_played: tuple[str, ...]
    untried: tuple[str, ...]
    scaled: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Whether something was tried, all of it was played, nothing failed and no claim was false."""
        return bool(self.cases) and not self.failures and not self.not_played and not any(one.false_in for one in self.claims)

    @property
    def verdict(self) -> str:
        """The qualified verdict."""
        return SAFE if self.passed else UNSAFE

    @property
    def left_to_people(self) -> int:
        """How many cases ended UNKNOWN and before a person."""
        return sum(not one.settled and one.left_to_a_person for one in self.cases)

    @property
    def at_their_point(self) -> int:
        """How many cases had their worker killed while they were at the point; others ran beside them."""
        return sum(one.at_point and one.point != NONE for one in self.cases)

    @property
    def missed(self) -> tuple[tuple[str, str], ...]:
        """The points, with their hosts, at which no operation was when the worker was killed, if it was."""
        every = dict.fromkeys((one.point, one.host) for one in self.cases)
        hit = {(one.point, one.host) for one in self.cases if one.at_point}
        return tuple(one for one in every if one not in hit)

    @property
    def not_tried(self) -> list[str]:
        """What was not tried: troubles that the sandbox cannot make, and points that were never met."""
        points = [f"killed: {point}; host: {host}: no operation came to this point" for point, host in self.missed]
        return [*(f"trouble: {one}" for one in self.untried), *points]

    def to_report(self) -> SafetyReport:
        """Return it as checks: one per claim and one per point × host."""
        checks = [_check_of(one) for one in self.claims if one.rested_on or one.false_in]  # what was not tried has not passed
        failed = {(one.case.point, one.case.host): one for one in reversed(self.failures)}
        for point, host in dict.fromkeys((one.point, one.host) for one in self.cases):
            if (point, host) in self.missed and (point, host) not in failed:
                continue  # nothing was there when the worker was killed: what was not tried has not passed
            wrong = failed.get((point, host))
            detail = "" if wrong is None else f"{wrong.what}: {describe(wrong.case)}"
            checks.append(SafetyCheck(name=f"killed: {point}; host: {host}", passed=wrong is None, detail=detail))
        checks += [SafetyCheck(name=f"round: {one}", passed=False, detail="could not be played") for one in self.not_played]
        return SafetyReport(name=f"certification of {self.contract}", checks=tuple(checks))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "contract": self.contract,
            "version": self.version,
            "verdict": self.verdict,
            "passed": self.passed,
            "quick": self.quick,
            "cases_played": len(self.cases),
            "cases_at_their_point": self.at_their_point,
            "left_to_people": self.left_to_people,
            "claims": [
                {
                    "claim": one.name,
                    "verdict": one.verdict,
                    "rested_on": one.rested_on,
                    "false_in": len(one.false_in),
                    "smallest": _failure(one.false_in[0]) if one.false_in else None,
                }
                for one in self.claims
            ],
            "failures": [_failure(one) for one in self.failures],
            "rests_on": [one.to_json() for one in self.beyond],
            "not_played": list(self.not_played),
            "not_tried": self.not_tried,
            "scaled_terms": dict(self.scaled),
            "cases": [one.to_json() for one in self.cases],
        }


def describe(case: Seen) -> str:
    """Say a case in words."""
    said = [case.told]
    said += [f"the worker is killed {POINTS[case.point]}"] if case.point != NONE else []
    said += [HOSTS[case.host]] if case.host != NONE else []
    return "; ".join(said)


def _failure(one: Failure) -> dict[str, Any]:
    return {"what": one.what, "claim": one.claim, "case": describe(one.case), "seen": one.case.to_json()}


def _check_of(claim: Claim) -> SafetyCheck:
    facts = {"rested_on": claim.rested_on, "false_in": len(claim.false_in)}
    smallest = claim.false_in[0] if claim.false_in else None
    detail = "" if smallest is None else f"{smallest.what}: {describe(smallest.case)}"
    return SafetyCheck(name=f"claim: {claim.name}", passed=smallest is None, detail=detail, facts=facts)


def certify(
    app: App,
    contract: EffectContract,
    sandbox: Sandbox,
    *,
    app_reference: str,
    points: Iterable[str] = tuple(POINTS),
    hosts: Iterable[str] = tuple(HOSTS),
    troubles: Iterable[str] | None = None,
    quick: bool = False,
    jobs: int = 1,
    key_seconds: float = KEY_SECONDS,
    told: Told = lambda done, total, what: None,
    here: Path | None = None,
) -> Certificate:
    """Play every point × host × trouble of a contract; `told` hears of each round that ended. Handlers run in `here`.

    Raises ConfigurationError where the sandbox fails before anything is dispatched, or the contract refuses the arguments that it gives.
    """
    wanted = sandbox.troubles if troubles is None else sandbox.troubles & set(troubles)
    rounds = plan(contract, sandbox, points=points, hosts=hosts, troubles=troubles, quick=quick)
    beyond = [one for one in BEYOND if one.name in wanted]
    extra = [Round(NONE, NONE, tuple(beyond))] if beyond else []
    scaled = scale(contract.terms, key_seconds)
    with tempfile.TemporaryDirectory(prefix="settled-certify-") as name, shortened_keys(sandbox, contract.terms, scaled):
        folder = Path(name)
        (folder / "sandbox").mkdir()
        with _theirs("the sandbox cannot be opened"):
            environment = sandbox.open(folder / "sandbox")
        try:
            with _theirs(f"the sandbox gives no arguments that {contract.name!r} takes"):
                check_order(contract, contract.name, sandbox.arguments(f"case-{secrets.token_hex(6)}"), limits=DEFAULTS)
            setting = Setting(
                theirs=app,
                app_reference=app_reference,
                contract=contract.name,
                terms={contract.name: scaled},
                sandbox=sandbox,
                environment=environment,
                here=here or Path.cwd(),
            )
            played, not_played = _play_all(setting, [*extra, *rounds], folder, jobs, told)
        finally:
            sandbox.close()
    names = {one.name for one in beyond}
    cases = tuple(one for one in played if one.trouble not in names)
    failures = tuple(sorted(filter(None, map(judge, cases)), key=lambda one: one.case.size))
    return Certificate(
        contract=contract.name,
        version=contract.version,
        quick=quick,
        cases=cases,
        failures=failures,
        claims=tuple(judge_claims(cases, failures, contract.terms)),
        beyond=tuple(one for one in played if one.trouble in names),
        not_played=tuple(not_played),
        untried=tuple(one.name for one in (*TROUBLES, *BEYOND) if one.name not in wanted),
        scaled=scaled,
    )


@contextlib.contextmanager
def _theirs(what: str) -> Iterator[None]:
    """Run the user's code before the first round. Raises ConfigurationError for whatever it raises."""
    try:
        yield
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {safe_str(error)}", _SAID_MAX)
        raise ConfigurationError(
            f"{what}: {said.rstrip('.')}. Nothing was dispatched. "
            f"Mend the sandbox, or name another one: `sandbox` beside the contract, or --sandbox"
        ) from error


def plan(
    contract: EffectContract,
    sandbox: Sandbox,
    *,
    points: Iterable[str],
    hosts: Iterable[str],
    troubles: Iterable[str] | None,
    quick: bool,
) -> list[Round]:
    """Return the rounds that this contract and this sandbox can be given of what is named; None: all troubles."""
    wanted = sandbox.troubles if troubles is None else sandbox.troubles & set(troubles)
    tried = [one for one in points if one != "sending" or contract.terms.announces_sending]
    there = [one for one in hosts if one not in OUTAGES or has_a_window(contract.terms)]
    mine = [one for one in TROUBLES if one.name in wanted]
    return plan_rounds(mine, points=tried, hosts=there, quick=quick, per_round=PER_ROUND)


def _play_all(setting: Setting, rounds: list[Round], folder: Path, jobs: int, told: Told) -> tuple[list[Seen], list[str]]:
    seen: list[Seen] = []
    not_played: list[str] = []
    total = len(rounds)

    def run(numbered: tuple[int, Round]) -> tuple[Round, list[Seen] | str]:
        number, one = numbered
        try:
            return one, play(setting, one, folder / f"round-{number}")
        except (RoundFailedError, OSError) as error:
            return one, str(error)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        for done, (one, result) in enumerate(pool.map(run, enumerate(rounds)), start=1):
            if isinstance(result, str):
                not_played.append(f"{one.point}, {one.host}: {result}")
            else:
                seen += result
            told(done, total, f"{one.point}, {one.host}")
    return seen, not_played
