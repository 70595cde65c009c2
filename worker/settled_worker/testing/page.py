"""Write a certificate as one HTML page that a person can read: no script, no link, nothing to load. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from settled.core.text import escape_controls
from settled_worker.testing.certify import Certificate, describe
from settled_worker.testing.judging import Seen, judge
from settled_worker.testing.points import HOSTS, POINTS

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c1121f; --ask: #9a6700; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin: 0 0 .3rem; font-size: 1.6rem; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.15rem; }
.verdict { border-left: .5rem solid; padding: .6rem 1rem; margin: 1rem 0; background: var(--soft); font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); } .ask { color: var(--ask); }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td:nth-child(2) { min-width: 6rem; } td.n { text-align: center; white-space: nowrap; } th.n { text-align: center; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; } .facts b { font-size: 1.3rem; display: block; }
code { font-size: .88em; overflow-wrap: anywhere; } .wide { overflow-x: auto; } .small { font-size: .88rem; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #ff7b72; --ask: #d29922; } }
"""

DOES_NOT_SAY: Final = (
    "It speaks of this contract, this handler and this probe as they were, at a sandbox. Another version is another contract.",
    "The sandbox is believed. Where it behaves better than the real destination, so does this page.",
    "Times were shortened: whether the bounds that the contract declares are long enough for the real destination was not tried.",
    "Power cuts, other machines' clocks, a lost disk and two hosts on one file were not tried.",
    "CONFIRMED means at least once. UNKNOWN before a person is an honest end here, and work for that person.",
)


def to_html(certificate: Certificate) -> str:
    """Return the page."""
    one = certificate
    title = f"Certificate of {one.contract}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>version {_text(one.version)}{', quick: not every combination was played' if one.quick else ''}</p>",
        f'<p class="verdict {"good" if one.passed else "bad"}">{_text(one.verdict)}</p>',
        _facts(one),
        _claims(one),
        _failures(one),
        _matrix("Where the worker was killed, and how its host was", one.cases, POINTS, "point", HOSTS, "host"),
        _troubles(one.cases),
        _rests_on(one),
        _small_print(one),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _facts(one: Certificate) -> str:
    failed = len(one.failures)
    facts = {
        "cases played": (len(one.cases), ""),
        "with a worker killed at that very point": (one.at_their_point, ""),
        "settled with at most one effect": (sum(case.settled for case in one.cases if judge(case) is None), "good"),
        "UNKNOWN, put before a person": (one.left_to_people, "ask"),
        "failed": (failed, "bad" if failed else ""),
    }
    shown = (f'<div><b class="{kind}">{count}</b>{_text(what)}</div>' for what, (count, kind) in facts.items())
    return f'<div class="facts">{"".join(shown)}</div>'


def _claims(one: Certificate) -> str:
    rows = []
    for claim in one.claims:
        kind = "bad" if claim.false_in else "good" if claim.rested_on else "ask"
        told = ""
        if claim.false_in:
            smallest = claim.false_in[0]
            case, what = _text(describe(smallest.case)), _text(smallest.what)
            told = f"<br>smallest case: {case} → {what} <code>{_story(smallest.case)}</code>"
        rows.append([_text(claim.name) + told, f'<span class="{kind}">{_text(claim.verdict)}</span>', str(claim.rested_on)])
    return _table("What the contract claims", ["claim", "verdict", "cases that rested on it"], rows)


def _failures(one: Certificate) -> str:
    if not one.failures and not one.not_played:
        return ""
    shown = one.failures[:_FAILURES_MAX]
    rows = [[_text(failure.what), _text(describe(failure.case)), f"<code>{_story(failure.case)}</code>"] for failure in shown]
    rows += [["could not be played", _text(what), ""] for what in one.not_played]
    return _table(f"What failed ({len(one.failures)} cases), the smallest first", ["what", "when", "events"], rows)


_FAILURES_MAX: Final = 20


def _matrix(title: str, cases: Sequence[Seen], rows: Mapping[str, str], row: str, columns: Mapping[str, str], column: str) -> str:
    used = [name for name in columns if any(getattr(case, column) == name for case in cases)]
    body = []
    for name, told in rows.items():
        mine = [case for case in cases if getattr(case, row) == name]
        if mine:
            body.append([f"<b>{_text(name)}</b><br><span class='small'>{_text(told)}</span>"] + [
                _cell([case for case in mine if getattr(case, column) == other]) for other in used
            ])  # fmt: skip
    legend = "<p class='small'>settled · before a person · failed, of the cases played</p>"
    return _table(title, ["", *(_text(columns[name]) for name in used)], body, counts=True) + legend


def _troubles(cases: Sequence[Seen]) -> str:
    names = {case.trouble: case.told for case in cases}
    rows = []
    for name, told in names.items():
        mine = [case for case in cases if case.trouble == name]
        ends = sorted({f"{case.outcome or 'none'}{f' ({case.reason})' if case.reason else ''}" for case in mine})
        rows.append([f"<b>{_text(name)}</b><br><span class='small'>{_text(told)}</span>", _cell(mine), _text(", ".join(ends))])
    return _table("What the destination did", ["", "cases", "how they ended"], rows, counts=True)


def _cell(cases: Iterable[Seen]) -> str:
    every = list(cases)
    if not every:
        return "–"
    failed = sum(judge(case) is not None for case in every)
    person = sum(not case.settled and judge(case) is None for case in every)
    settled = len(every) - failed - person
    counts = (("good", settled), ("ask", person), ("bad" if failed else "", failed))
    return " · ".join(f'<span class="{kind}">{count}</span>' for kind, count in counts)


def _rests_on(one: Certificate) -> str:
    rows = [[_text(case.told), str(case.effects), _text(case.outcome or "none")] for case in one.beyond]
    if not rows:
        return ""
    said = "<p>No contract can defend against these everywhere. They are no part of the verdict; they are what it rests on.</p>"
    return _table("If the destination itself is at fault", ["when", "effects", "outcome"], rows, before=said)


def _small_print(one: Certificate) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in DOES_NOT_SAY)
    tried = f"<p>Not tried: {_text('; '.join(one.not_tried))}.</p>" if one.not_tried else ""
    scaled = ", ".join(f"{name}={value}" for name, value in one.scaled.items())
    return f"<h2>What this page does not say</h2><ul>{items}</ul>{tried}<p class='small'>Terms as played: <code>{_text(scaled)}</code></p>"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]], *, counts: bool = False, before: str = "") -> str:
    kind = ' class="n"' if counts else ""
    head = "".join(f"<th{kind if index else ''}>{text}</th>" for index, text in enumerate(heads))
    body = "".join("<tr>" + "".join(f"<td{kind if index else ''}>{text}</td>" for index, text in enumerate(row)) + "</tr>" for row in rows)
    return f"<h2>{_text(title)}</h2>{before}<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _story(case: Seen) -> str:
    return _text(" → ".join(case.events))


def _text(text: str) -> str:
    return escape(escape_controls(text))
