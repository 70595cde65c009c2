"""Draw the table of policies as an SVG: one bar for each policy and fault, in the shares of what came of the episodes."""

from collections.abc import Sequence
from html import escape
from typing import Final

from tests.compare.policies import FAULTS, POLICIES, Came

_LEFT, _TOP, _WIDE, _HIGH, _GAP = 170, 58, 118, 20, 12
_COLOURS: Final = {"two effects": "#c0392b", "no effect": "#d68910", "left to a person": "#7f8c8d", "one effect": "#1e8449"}


def svg(table: Sequence[Came]) -> str:
    """Return the picture as text."""
    found = {(one.policy, one.fault): one for one in table}
    width, height = _LEFT + len(FAULTS) * (_WIDE + _GAP), _TOP + len(POLICIES) * (_HIGH + _GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" role="img">',
        "<title>What comes of a payment, by policy and fault</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, fault in enumerate(FAULTS):
        parts.append(f'<text x="{_LEFT + column * (_WIDE + _GAP)}" y="{_TOP - 12}" fill="#222">{escape(fault)}</text>')
    for number, policy in enumerate(POLICIES):
        y = _TOP + number * (_HIGH + _GAP)
        parts.append(f'<text x="8" y="{y + 14}" fill="#222">{escape(policy)}</text>')
        for column, fault in enumerate(FAULTS):
            parts += _bar(found[policy, fault], _LEFT + column * (_WIDE + _GAP), y)
    x = 8
    for word, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="22" fill="#222">{word}</text>')
        x += 34 + 7 * len(word)
    return "\n".join([*parts, "</svg>", ""])


def _bar(one: Came, x: int, y: int) -> list[str]:
    shares = {"two effects": one.duplicates, "no effect": one.omissions, "left to a person": one.people}
    shares["one effect"] = one.episodes - sum(shares.values())
    parts, at = [], float(x)
    for word, count in shares.items():
        wide = _WIDE * count / one.episodes
        if count:
            parts.append(f'<rect x="{at:.1f}" y="{y}" width="{wide:.1f}" height="{_HIGH}" fill="{_COLOURS[word]}"/>')
            if wide > 24:
                parts.append(f'<text x="{at + 4:.1f}" y="{y + 14}" fill="#fff">{count}</text>')
        at += wide
    return parts
