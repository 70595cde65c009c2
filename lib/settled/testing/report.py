"""What a safety suite found: checks with exact verdicts, and a report that never says more than it tested.

Promise: a verdict is an exact bool, a check an exact SafetyCheck; an empty report has not passed.
"""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree import ElementTree

from settled.core.canonical import canonical_text
from settled.core.text import escape_controls

SAFE: Final = "SAFE UNDER TESTED CONDITIONS"
UNSAFE: Final = "UNSAFE UNDER TESTED CONDITIONS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyCheck:
    """One thing that was tried. `facts` are strict JSON, what was counted among them. Raises TypeError for anything but exact types."""

    name: str
    passed: bool
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("name", "detail"):
            if type(getattr(self, name)) is not str:
                raise TypeError(f"{name} must be a str, not {getattr(self, name)!r}")
        if not self.name.strip():
            raise ValueError("a check needs a name")
        if type(self.passed) is not bool:
            raise TypeError(f"passed must be True or False, not {self.passed!r}")
        if type(self.facts) is not dict:
            raise TypeError(f"facts must be a dict, not {type(self.facts).__name__}")
        object.__setattr__(self, "facts", json.loads(canonical_text(self.facts, "facts")))

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyReport:
    """All checks of one suite; `comparison` holds what another way of doing it counted. Raises TypeError for look-alikes."""

    checks: tuple[SafetyCheck, ...]
    name: str = "safety suite"
    comparison: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if type(self.checks) is not tuple:
            raise TypeError(f"checks must be a tuple of SafetyCheck, not {type(self.checks).__name__}")
        for index, one in enumerate(self.checks):
            if type(one) is not SafetyCheck:
                raise TypeError(f"checks[{index}] must be a SafetyCheck, not {type(one).__name__}")
        if type(self.name) is not str:
            raise TypeError(f"name must be a str, not {self.name!r}")
        if self.comparison is not None:
            if type(self.comparison) is not dict:
                raise TypeError(f"comparison must be a dict, not {type(self.comparison).__name__}")
            object.__setattr__(self, "comparison", json.loads(canonical_text(self.comparison, "comparison")))

    @property
    def passed(self) -> bool:
        """Whether there was a check and every one passed."""
        return bool(self.checks) and all(one.passed for one in self.checks)

    @property
    def verdict(self) -> str:
        """The qualified verdict: it speaks of the tested conditions and of nothing else."""
        return SAFE if self.passed else UNSAFE

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        data: dict[str, Any] = {
            "name": self.name,
            "passed": self.passed,
            "verdict": self.verdict,
            "checks": [one.to_json() for one in self.checks],
        }
        return data if self.comparison is None else data | {"comparison": dict(self.comparison)}

    def to_text(self) -> str:
        """Return the report for people: a line per check, the comparison, the verdict last."""
        lines = [escape_controls(self.name)]
        for one in self.checks:
            lines += _wrapped(f"{'passed' if one.passed else 'FAILED'}  {one.name}", indent=2, more=10)
            lines += _wrapped(one.detail, indent=10, more=10) if one.detail and not one.passed else []
        if not self.checks:
            lines.append("  nothing was checked, which shows nothing")
        if self.comparison is not None:
            lines += ["", *_comparison_lines(self.comparison)]
        return "\n".join([*lines, "", self.verdict])

    def to_junit(self) -> str:
        """Return the report as JUnit XML. An empty report is one failure."""
        failed = sum(not one.passed for one in self.checks) or int(not self.checks)
        count = len(self.checks) or 1
        attributes = {"name": _plain(self.name), "tests": str(count), "failures": str(failed), "errors": "0"}
        suite = ElementTree.Element("testsuite", attributes)
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", {"name": "verdict", "value": self.verdict})
        for one in self.checks:
            case = ElementTree.SubElement(suite, "testcase", {"name": _plain(one.name), "classname": _plain(self.name)})
            if not one.passed:
                failure = ElementTree.SubElement(case, "failure", {"message": _plain(one.detail or "failed")})
                failure.text = _plain(json.dumps(dict(one.facts)))
        if not self.checks:
            case = ElementTree.SubElement(suite, "testcase", {"name": "something is checked", "classname": _plain(self.name)})
            ElementTree.SubElement(case, "failure", {"message": "the report is empty"})
        ElementTree.indent(suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _plain(text: str) -> str:
    """XML has no place for control characters."""
    return escape_controls(text)


def _comparison_lines(comparison: Mapping[str, Any]) -> list[str]:
    lines = [escape_controls(str(comparison.get("name", "comparison")))]
    for who, facts in comparison.items():
        if isinstance(facts, dict):
            told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
            lines += _wrapped(f"{who}: {told}", indent=2, more=4)
    return lines


def _wrapped(text: str, *, indent: int, more: int) -> list[str]:
    """Return lines that a narrow terminal shows whole: the first indented by `indent`, what follows it by `more`."""
    return textwrap.wrap(escape_controls(text), 79, initial_indent=" " * indent, subsequent_indent=" " * more, break_on_hyphens=False)
