"""The rules about people that settings may make: which risks need two of them, and how long what they are asked stands."""

from dataclasses import dataclass

from settled.core.limits import DEFAULTS
from settled.core.moment import SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`two_person_risks` names the risks whose resolutions one person proposes and another one approves."""

    two_person_risks: frozenset[str] = frozenset()
    proposal_expires_seconds: float = DEFAULTS.proposal_expires_seconds
    approval_expires_seconds: float = DEFAULTS.approval_expires_seconds

    @property
    def proposal_expires_us(self) -> int:
        return round(self.proposal_expires_seconds * SECOND_US)

    @property
    def approval_expires_us(self) -> int:
        return round(self.approval_expires_seconds * SECOND_US)
