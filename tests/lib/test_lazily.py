"""What is imported when: nothing slow for who only declares, and everything once, whoever comes first."""

from pathlib import Path

import pytest

from settled import App, steps, store
from settled.lazily import modules_of
from tests.lib.apps.bench import run

SLOW = (
    "sqlalchemy", "alembic", "sqlite3", "pysqlite3", "pydantic", "pydantic_settings", "structlog", "rich", "apscheduler", "click",
    "asyncio", "concurrent.futures", "logging", "subprocess", "importlib.metadata", "settled_worker", "settled_cli",
)  # fmt: skip
DECLARES = f"""
import sys
from settled import App, EffectContract, ProbeResult, RetryPolicy, Status

app = App(sys.argv[1])

@app.effect(operation_id=lambda arguments: arguments["id"], retry=RetryPolicy(max_attempts=2), timeout=5)
def pay(arguments):
    return {{}}

@pay.probe
def look(arguments):
    return ProbeResult.pending()

mail = app.register(EffectContract(name="mail", operation_id=lambda arguments: arguments["id"], isolation="thread"))
print([name for name in {SLOW!r} if name in sys.modules])
"""
IN_THREADS = """
import threading
start, ended = threading.Barrier(12), []

def submit(number):
    app.submit("mail", {"id": str(number)})

USES = (submit, lambda _: app.list(), lambda _: app.pauses(), lambda _: app.pending_proposals(), lambda _: app.engine(),
        lambda _: app.pause("mail", actor="me", reason="look"))

def use(number):
    start.wait()
    USES[number % len(USES)](number)
    ended.append(number)

threads = [threading.Thread(target=use, args=(number,)) for number in range(12)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(sorted(ended) == list(range(12)), len(app.list()))
"""


@pytest.mark.promise("D64", part="what it costs to declare: no database library, no settings, no logging, no loop")
def test_a_program_that_declares_contracts_has_imported_nothing_slow(tmp_path: Path) -> None:
    assert run(DECLARES, tmp_path / "x.db") == "[]"


def test_a_runner_that_asks_what_is_masked_imports_no_database_library(tmp_path: Path) -> None:
    masks = "import settled.execution.runner\napp.redact('x')\n"
    prints = "print([name for name in ('sqlalchemy', 'structlog', 'rich') if name in sys.modules])"
    assert run(DECLARES + masks + prints, tmp_path / "x.db").splitlines() == ["[]", "[]"]


def test_the_first_use_may_come_from_many_threads_at_once(tmp_path: Path) -> None:
    App(tmp_path / "x.db").create_database()
    for _ in range(3):
        assert run(DECLARES + IN_THREADS, tmp_path / "x.db").splitlines()[1].startswith("True")


def test_a_name_that_no_module_has_is_an_attribute_error() -> None:
    for package in (steps, store):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = package.nothing  # type: ignore[attr-defined]


def test_a_module_that_lacks_what_it_imports_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed_thing").mkdir()
    (tmp_path / "packed_thing" / "broken.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        modules_of("packed_thing")("broken")
