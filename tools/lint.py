"""Find what our own rules forbid and no general tool knows. Each rule reads one file and answers with lines and sentences.

`python tools/lint.py [ROOT]` prints every finding as path:line: rule: sentence, and exits 1 if there is one. The rules are
about meaning: who may compare a status, reap a child, read a clock, open a ledger, and what a page may claim.
"""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PACKAGES = ("settled", "settled_worker", "settled_cli")
PRODUCT = ("lib/", "worker/", "cli/")
CACHES = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache", ".hypothesis"})
SKIPPED_FOLDERS = CACHES | {".git", ".venv", "mutants", "build", "dist"}
WORDS = "lib/settled/core/words.py"

Finding = tuple[int, str]


class Source(NamedTuple):
    """One file under the linted root. `tree` is None for what is not Python; `statuses` are the values of core's Status."""

    path: str
    text: str
    tree: ast.Module | None
    statuses: frozenset[str]

    def is_under(self, *prefixes: str) -> bool:
        return self.path.startswith(prefixes)


def one_sqlite_per_process(source: Source) -> Iterator[Finding]:
    """A second SQLite library in one process drops the first one's locks when it closes the file, and commits are lost."""
    if not source.is_under("tests/") or not any(name.split(".")[0] in PACKAGES for _, name in imported(source)):
        return
    for line, name in imported(source):
        if name.split(".")[0] == "sqlite3":
            yield line, "a test beside an App opens no second SQLite library; inspect through settled.store or in a child process"


def status_is_compared_in_core_only(source: Source) -> Iterator[Finding]:
    """What may follow a status is one table; a comparison of text elsewhere is the start of a second one."""
    if not source.is_under(*PRODUCT) or source.is_under("lib/settled/core/") or source.path == "lib/settled/store/schema.py":
        return
    for node in nodes(source):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops):
            compared: list[ast.expr] = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        else:
            continue
        for text in compared_texts(compared):
            if text in source.statuses:
                yield node.lineno, f"the status text {text!r} is compared here; use settled.core.words.Status, or ask the core"


def only_the_supervisor_reaps_strangers(source: Source) -> Iterator[Finding]:
    """A process that runs user code and reaps any child makes a failed command of a handler report success."""
    if source.is_under("tests/", "tools/") or source.path == "lib/settled/execution/supervisor.py":
        return
    for node in nodes(source):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        first = ast.unparse(node.args[0]) if node.args else ""
        any_child = (called == "waitpid" and first == "-1") or (called == "waitid" and first.endswith("P_ALL"))
        if any_child or ast.unparse(node.func) in ("os.wait", "os.wait3"):
            yield node.lineno, f"{called}({first}) reaps children that are not ours; only execution/supervisor.py may"


def no_pickle_in_execution(source: Source) -> Iterator[Finding]:
    """A runner gets its app by name and its work as JSON; pickled code and forked interpreters bring back what that avoids."""
    if not source.is_under("lib/settled/execution/"):
        return
    for line, name in imported(source):
        if name.split(".")[0] in ("pickle", "multiprocessing"):
            yield line, f"{name} has no place in settled.execution; send JSON lines to a runner"


CLOCKS = re.compile(r"time\.(time|monotonic|clock_gettime)(_ns)?|datetime\.datetime\.(now|utcnow|today)|datetime\.date\.today")


def clocks_are_read_in_one_place(source: Source) -> Iterator[Finding]:
    """Every decision takes `now` as an argument; a clock read elsewhere is a decision that no test can place in time."""
    if not source.is_under(*PRODUCT) or source.path == "lib/settled/clock.py" or source.is_under("cli/settled_cli/demo"):
        return
    meant = {alias: name for node in nodes(source) for alias, name in aliases(node)}
    for node in nodes(source):
        if isinstance(node, ast.Attribute | ast.Name):
            head, dot, rest = ast.unparse(node).partition(".")
            if CLOCKS.fullmatch(meant.get(head, "") + dot + rest):
                yield node.lineno, f"{ast.unparse(node)} reads a clock; take `now` as an argument, or a Clock from settled.clock"


def core_needs_nothing(source: Source) -> Iterator[Finding]:
    """The core is pure: what it decides can be tested, and moved, without a library or a host."""
    if not source.is_under("lib/settled/core/"):
        return
    for line, name in imported(source):
        if name.split(".")[0] not in sys.stdlib_module_names and not (name + ".").startswith("settled.core."):
            yield line, f"the core imports {name}; it may import the standard library and itself"


CLAIMS = re.compile(r"\b(exactly[-\s]+once|guaranteed[-\s]+delivery|production[-\s]+ready)\b", re.IGNORECASE)
DENIALS = re.compile(r"\b(no|not|never|nor|neither|cannot|without|nothing|nobody|\w+n['’]t)\b", re.IGNORECASE)


def nothing_is_overclaimed(source: Source) -> Iterator[Finding]:
    """No worker can promise these; a page may only say that it does not. The denial stands on the same line or the one before."""
    if source.path.endswith((".md", ".rst", ".txt")):
        texts = [(1, source.text)]
    elif source.is_under(*PRODUCT, "examples/"):
        texts = [(node.lineno, node.value) for node in nodes(source) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    else:
        texts = docstrings(source)
    for first_line, text in texts:
        lines = text.split("\n")
        for claim in CLAIMS.finditer(text):
            start, end = text.count("\n", 0, claim.start()), text.count("\n", 0, claim.end())
            if not DENIALS.search(" ".join(lines[max(0, start - 1) : end + 1])):
                said = " ".join(claim.group().split())
                yield first_line + start, f"{said!r} is claimed here; say what the evidence shows, or deny it on the same line"


STRANGERS = re.compile(r"\.\./" + r"shared\b|(?<![\w.])/" + r"work/")  # in two pieces, or this line would find itself


def nothing_outside_is_named(source: Source) -> Iterator[Finding]:
    """The repository stands alone: a path of the machine it was written on means nothing to whoever clones it."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if STRANGERS.search(line):
            yield number, "this names a place outside the repository"


RULES: Sequence[Callable[[Source], Iterator[Finding]]] = (
    one_sqlite_per_process,
    status_is_compared_in_core_only,
    only_the_supervisor_reaps_strangers,
    no_pickle_in_execution,
    clocks_are_read_in_one_place,
    core_needs_nothing,
    nothing_is_overclaimed,
    nothing_outside_is_named,
)


def nodes(source: Source) -> Iterator[ast.AST]:
    return ast.walk(source.tree) if source.tree else iter(())


def aliases(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (name in this file, full name) for each name that an import statement binds."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield each.asname or each.name.split(".")[0], each.name if each.asname else each.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:
            yield each.asname or each.name, f"{'.' * node.level}{node.module or ''}.{each.name}"


def imported(source: Source) -> list[tuple[int, str]]:
    """Return (line, module) of every import, also of those inside functions. A relative one is resolved to its full name."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += [(node.lineno, each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = PurePosixPath(source.path).parts[1:-1]  # lib/settled/core/x.py stands in settled.core
            base = package[: len(package) - node.level + 1] if node.level else ()
            found.append((node.lineno, ".".join([*base, *([node.module] if node.module else [])])))
    return found


def compared_texts(expressions: Sequence[ast.expr]) -> Iterator[str]:
    for expression in expressions:
        inner = expression.elts if isinstance(expression, ast.Tuple | ast.List | ast.Set) else [expression]
        yield from (each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str))


def docstrings(source: Source) -> list[tuple[int, str]]:
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False):
            statement = node.body[0]
            found.append((statement.lineno, ast.get_docstring(node, clean=False) or ""))
    return found


def status_values(root: Path) -> frozenset[str]:
    """Read the values of Status from the source: linting must not import, and so run, what it judges."""
    for node in ast.walk(ast.parse((root / WORDS).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == "Status":
            assigned = [each.value for each in node.body if isinstance(each, ast.Assign)]
            return frozenset(each.value for each in assigned if isinstance(each, ast.Constant) and isinstance(each.value, str))
    raise SystemExit(f"{WORDS} holds no class Status, so nothing was linted. Mend WORDS in tools/lint.py.")


def sources(root: Path) -> Iterator[Source]:
    statuses = status_values(root)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(files):
            path = Path(folder, name)
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, FileNotFoundError):
                continue  # not text, or a dangling link: it makes no claim and runs no code
            relative = path.relative_to(root).as_posix()
            try:
                tree = ast.parse(text, relative) if name.endswith(".py") else None
            except SyntaxError as error:
                raise SystemExit(f"{relative}:{error.lineno}: not Python ({error.msg}). Nothing was linted. Mend it first.") from None
            yield Source(relative, text, tree, statuses)


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = [f"{source.path}:{line}: {rule.__name__}: {what}" for source in sources(root) for rule in RULES for line, what in rule(source)]
    print("\n".join(found) if found else "tools/lint.py: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
