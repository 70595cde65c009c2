"""Whether an output belongs to the effect whose provider operation ID is retained, and whether there are perhaps two effects.

The first ID that is seen is retained. A missing ID matches nothing, not even another missing one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from settled.core.case import Case
from settled.core.history import Observation


def is_second_id(case: Case, seen: str | None) -> bool:
    """Return whether another provider operation ID than `seen` is retained or confirmed: perhaps a second effect."""
    if not seen:
        return False
    known = {case.row.provider_operation_id, *(one.provider_operation_id for one in case.history.confirmations)}
    return not known <= {None, seen}


def with_output(case: Case, data: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a confirming observation, its output only where it belongs to what is retained."""
    seen = data.get("id")
    marked = data | ({"duplicate": True} if is_second_id(case, seen) else {})
    return marked if _belongs(case, seen, case.history.confirmations) else withheld(marked)


def returned_output(case: Case, data: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a handler's own return: its output is withheld only where it names another ID."""
    seen, retained = data.get("id"), case.row.provider_operation_id
    marked = data | ({"duplicate": True} if is_second_id(case, seen) else {})
    return withheld(marked) if seen and retained and seen != retained else marked


def first_shown(case: Case, kept: Sequence[Observation]) -> Observation | None:
    """Return the first kept confirmation whose output may be shown."""
    for one in kept:
        others = [seen for seen in case.history.confirmations if seen.sequence != one.sequence]
        if one.has_output and _belongs(case, one.provider_operation_id, others):
            return one
    return None


def withheld(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts without the output, marked where there was one."""
    return {name: value for name, value in data.items() if name != "out"} | ({"withheld": True} if "out" in data else {})


def _belongs(case: Case, seen: str | None, others: Sequence[Observation]) -> bool:
    retained = case.row.provider_operation_id
    if retained is not None:
        return seen == retained
    return seen is not None or not others
