"""The documents state what they must, claim no more than they may, and point at what exists."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from settled.core.limits import DEFAULTS, TERM_DEFAULTS
from settled.core.words import Outcome
from tools.lint import Source, core_needs_nothing, nothing_is_overclaimed

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CODE = sorted(path.relative_to(ROOT).as_posix() for top in ("lib", "worker", "cli") for path in ROOT.glob(f"{top}/**/*.py"))


def words_of(page: str) -> str:
    """Return the page as one line of lower-case words: line breaks and emphasis carry no meaning here."""
    return " ".join(re.sub(r"[*`_]", "", (ROOT / page).read_text(encoding="utf-8")).lower().split())


@pytest.mark.promise("P86")
@pytest.mark.parametrize(
    "said",
    [
        "authentication and authorization per resource",
        "credentials",
        "real approvals",
        "truthful contracts",
        "no secrets in logs or evidence",
    ],
)
def test_the_security_page_lists_what_stays_with_the_integrator(said: str) -> None:
    assert said in words_of("SECURITY.md").partition("these stay with whoever integrates it")[2]


NOT_PROMISED = {
    "no exactly-once": r"no exactly-once",
    "nothing beyond the tested conditions": r"nothing is shown beyond the (tested conditions|conditions that were tested)",
    "never production-ready": r"(never|no page here) (called|says) production-ready",
    "unresolved outcomes are incidents": r"unresolved outcomes? (is an incident|are incidents)",
    "one host per SQLite file": r"one host per sqlite file",
    "one SQLite library per process": r"one sqlite library per process",
    "lease loss proves nothing": r"(lease loss|a lost lease) proves nothing about (remote )?requests",
    "a frozen runner may send late": r"frozen \(sigstop, .*between its last check and its send may send past the key's window",
    "nothing moves without a worker": r"without a worker nothing moves,? but the row that is called for",
    "a backup does not know the future": r"operations submitted after a backup are unknown to the ledger restored from it",
    "only as sound as the probe": r"a verdict is only as sound as the probe and the read path",
    "no secrets in keys and metadata": r"keys and metadata are stored, so no secrets there",
    "error text may leak": r"error text may leak what an adapter puts into it",
}


@pytest.mark.promise("P87", "D63")
@pytest.mark.parametrize("page", ["README.md", "docs/limits.md"])
@pytest.mark.parametrize("item", NOT_PROMISED)
def test_the_readme_and_the_limits_page_state_what_is_not_promised(page: str, item: str) -> None:
    assert re.search(NOT_PROMISED[item], words_of(page))


@pytest.mark.promise("D02")
def test_the_glossary_and_the_outcome_itself_say_that_confirmed_means_at_least_once() -> None:
    for text in (words_of("docs/glossary.md"), " ".join((Outcome.__doc__ or "").lower().split())):
        assert re.search(r"confirmed means that the effect happened at least once", text)
        assert re.search(r"does not deny duplicates", text)


@pytest.mark.promise("S09", part="the sentence of SECURITY.md")
def test_the_security_page_says_who_can_rebuild_the_audit_chain() -> None:
    assert "whoever can rewrite the whole file can rebuild the chain, unless a head is kept elsewhere" in words_of("SECURITY.md")


@pytest.mark.promise("D21", "D28", part="the sentence of SECURITY.md")
def test_the_security_page_says_that_a_hash_is_no_anonymisation() -> None:
    assert "a hash is no anonymisation" in words_of("SECURITY.md")


@pytest.mark.promise("P54", part="the sentences of SECURITY.md")
def test_the_security_page_says_that_operator_names_are_recorded_and_not_authenticated() -> None:
    said = words_of("SECURITY.md")
    assert "operators are recorded, not authenticated" in said
    assert "restrict the file and the account" in said


@pytest.mark.promise("X4", part="the sentence of docs/contracts.md")
def test_the_contracts_page_says_to_return_a_reference_and_no_payload() -> None:
    assert "return a reference, not a payload" in words_of("docs/contracts.md")


@pytest.mark.promise("X7")
@pytest.mark.parametrize("page", PAGES)
def test_no_page_overclaims_and_a_sentence_planted_in_it_is_found(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert list(nothing_is_overclaimed(Source(page, text, None, frozenset()))) == []
    planted = text + "\n\nEvery effect happens exactly" + " once.\n"
    assert [line for line, _ in nothing_is_overclaimed(Source(page, planted, None, frozenset()))] == [planted.count("\n")]


@pytest.mark.promise("X7")
def test_no_docstring_overclaims_and_a_sentence_planted_in_one_is_found() -> None:
    for path in CODE:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert list(nothing_is_overclaimed(Source(path, text, ast.parse(text), frozenset()))) == [], path
        planted = text + '\n\ndef planted() -> None:\n    """It offers guaranteed' + ' delivery."""\n'
        assert len(list(nothing_is_overclaimed(Source(path, planted, ast.parse(planted), frozenset())))) == 1, path


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"


@pytest.mark.promise("S125", part="that the table in docs/ equals the code")
@pytest.mark.parametrize("defaults", [DEFAULTS, TERM_DEFAULTS], ids=["limits", "terms"])
def test_the_limits_page_shows_every_default_of_the_code(defaults: object) -> None:
    shown = re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "docs/limits.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == len(fields(DEFAULTS)) + len(fields(TERM_DEFAULTS))
    for field in fields(defaults):  # type: ignore[arg-type]
        assert (field.name, str(getattr(defaults, field.name))) in shown


PROVIDERS = {"anthropic", "google-genai", "litellm", "openai"}
AGENT_FRAMEWORKS = {"autogen", "crewai", "langchain", "langgraph", "mcp", "openai-agents", "pydantic-ai", "smolagents"}

@pytest.mark.promise("P88", "D64", part="everything but the test suite with the network off")
def test_the_package_is_typed_and_light_and_its_core_needs_the_standard_library_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    required = {re.match(r"[\w-]+", line)[0].lower() for line in project["dependencies"]}  # type: ignore[index]
    assert required.isdisjoint(PROVIDERS | AGENT_FRAMEWORKS)
    assert len(required) <= 9, "few declared dependencies: a new one needs a reason in docs/adr"
    for package in ("lib/settled", "worker/settled_worker", "cli/settled_cli"):
        assert (ROOT / package / "py.typed").is_file()
    core = [path for path in CODE if path.startswith("lib/settled/core/")]
    assert len(core) > 5
    for path in core:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert list(core_needs_nothing(Source(path, text, ast.parse(text), frozenset()))) == [], path


PACKAGES = "Packages import downwards: the command line, the worker, the library"
FLOORS = "Inside the library: the shell, the store, the core"
FACADE = "The store and the core never import the package's own front door"
STORE = "Only settled.store knows a database library"
CORE = "The core needs nothing but the standard library"
UPWARDS = {  # what is planted: where, the line, and the contract that must break
    "core to store": ("lib/settled/core/words.py", "import settled.store", FLOORS),
    "core to the library": ("lib/settled/core/words.py", "import settled.execution", FLOORS),
    "core to the front door": ("lib/settled/core/words.py", "from settled import nothing_in_particular", FACADE),
    "core to a dependency": ("lib/settled/core/words.py", "import structlog", CORE),
    "store to the library": ("lib/settled/store/__init__.py", "import settled.execution", FLOORS),
    "library to the worker": ("lib/settled/execution/__init__.py", "import settled_worker", PACKAGES),
    "library to the command line": ("lib/settled/execution/__init__.py", "import settled_cli", PACKAGES),
    "worker to the command line": ("worker/settled_worker/__init__.py", "import settled_cli", PACKAGES),
    "a database outside the store": ("worker/settled_worker/__init__.py", "import sqlalchemy", STORE),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the three packages and their contracts, for imports to be planted in."""
    copy = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for top in ("lib", "worker", "cli"):
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def check_imports(house: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(house / top) for top in ("lib", "worker", "cli"))}
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    return subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.promise("S67")
@pytest.mark.parametrize("planted", [None, *UPWARDS])
def test_imports_go_downwards_and_a_planted_upward_one_breaks_a_contract(house: Path, planted: str | None) -> None:
    if planted is None:
        clean = check_imports(house)
        assert clean.returncode == 0, clean.stdout + clean.stderr
        return
    path, line, contract = UPWARDS[planted]
    original = (house / path).read_text(encoding="utf-8")
    (house / path).write_text(f"{original}\n{line}\n", encoding="utf-8")
    try:
        broken = check_imports(house)
    finally:
        (house / path).write_text(original, encoding="utf-8")
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert f"{contract} BROKEN" in broken.stdout
