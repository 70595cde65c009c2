"""Write docs/promises.md: each promise of tests/promises.toml in one sentence, with the tests whose marks say that they show it.

`python tools/promises.py` writes the page, `--check` only compares it. Tests are collected, not run: the page says which test
shows a promise, and the test run says whether it holds.
"""

import argparse
import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "promises.toml"
PAGE = ROOT / "docs" / "promises.md"

HEAD = """\
# The promises and the tests that show them

Written by `make promises` from tests/promises.toml and the marks in tests/; change those, not this page. A test stands
beside a promise because its author marked it so; whether it passes is for `make test` to say. "only …" names the part of
the promise that a test shows. "not yet" means that no test is marked with the whole of it: it may hold, but nothing here shows it.
"""


class Promise(NamedTuple):
    row: str
    ids: tuple[str, ...]
    sentence: str


class Shown(NamedTuple):
    """A test that shows a promise, or only the named part of it (empty: all of it)."""

    test: str
    part: str


class Marks:
    """A pytest plugin that keeps, for each promise id, the tests marked with it."""

    def __init__(self) -> None:
        self.shown: defaultdict[str, set[Shown]] = defaultdict(set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.partition("[")[0]  # the cases of one parametrised test show its promise together
            for mark in item.iter_markers("promise"):
                for id_ in mark.args:
                    self.shown[id_].add(Shown(test, mark.kwargs.get("part", "")))


def read_promises(source: Path) -> tuple[dict[str, str], list[Promise]]:
    """Return the chapters' titles by number, and the promises in the order of `source`."""
    with source.open("rb") as opened:
        data = tomllib.load(opened)
    return data["chapters"], [Promise(entry["row"], tuple(entry["ids"]), entry["sentence"]) for entry in data["promise"]]


def collect_marks(root: Path) -> Mapping[str, set[Shown]] | None:
    """Return what shows a promise, by its id, or None if pytest could not collect them all; it has then said why."""
    marks = Marks()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={root}", str(root / "tests")], plugins=[marks])
    if code == pytest.ExitCode.OK:
        return marks.shown
    print(said.getvalue()[said.getvalue().find("= ERRORS =") :], file=sys.stderr)  # the list of tests before it says nothing here
    return None


def render(chapters: Mapping[str, str], promises: Sequence[Promise], shown: Mapping[str, set[Shown]]) -> str:
    """Return the page: a table per chapter, a row per promise."""
    lines = [HEAD, covered(promises, shown) + "."]
    for number, chapter in groupby(promises, key=lambda promise: promise.row.partition(".")[0]):
        lines += ["", f"## {number}. {chapters[number]}", "", "| row | ids | promise | shown by |", "|---|---|---|---|"]
        lines += [f"| {promise.row} | {' '.join(promise.ids)} | {promise.sentence} | {shown_by(promise, shown)} |" for promise in chapter]
    return "\n".join(lines) + "\n"


def shown_by(promise: Promise, shown: Mapping[str, set[Shown]]) -> str:
    """Return the tests of a promise, and "not yet" with the ids that no test shows whole, where that is only some of them."""
    entries = sorted({entry for id_ in promise.ids for entry in shown.get(id_, ())})
    missing = [id_ for id_ in promise.ids if not is_covered(id_, shown)]
    said = [f"`{entry.test}`" + (f" (only {entry.part})" if entry.part else "") for entry in entries]
    if missing:
        said.append("not yet" if len(missing) == len(promise.ids) else f"not yet: {' '.join(missing)}")
    return "<br>".join(said)


def is_covered(id_: str, shown: Mapping[str, set[Shown]]) -> bool:
    """A part does not cover a promise: several parts may still leave something out."""
    return any(not entry.part for entry in shown.get(id_, ()))


def covered(promises: Sequence[Promise], shown: Mapping[str, set[Shown]]) -> str:
    ids = [id_ for promise in promises for id_ in promise.ids]
    partly = sum(1 for id_ in ids if shown.get(id_) and not is_covered(id_, shown))
    return f"{sum(is_covered(id_, shown) for id_ in ids)} of {len(ids)} ids covered, {partly} more in part"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not up to date")
    options = parser.parse_args(arguments)
    chapters, promises = read_promises(SOURCE)
    shown = collect_marks(ROOT)
    if shown is None:
        print("not every test could be collected. docs/promises.md was left as it is. Mend what is named above.", file=sys.stderr)
        return 1
    page = render(chapters, promises, shown)
    print(covered(promises, shown))
    if not options.check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print("docs/promises.md is not up to date with the marks in tests/. Nothing was written. Run: make promises", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
