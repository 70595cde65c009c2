"""Change the decisions and the guarded writer one by one with mutmut, and see which change no test misses.

`python tools/mutants.py [PATTERN…]`, such as `settled.core.guarantee*`. mutmut names a module by its path below `src/`, and its
tests name it as they import it; so it works on a copy of the sources in build/mutants, where lib/ is called src/.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "mutants"
MUTATED = ("core/decide_*.py", "core/guarantee.py", "core/evidence.py", "core/moment.py", "store/writer.py")
TESTS = (  # without the searches by hypothesis, which would take minutes for each mutant
    *(f"tests/lib/core/test_{name}.py" for name in ("guarantee", "evidence", "judge_absence", "case", "moment")),
    *(f"tests/lib/core/test_decide_{name}.py" for name in ("claim", "end", "evidence", "late", "lease", "operator", "unknown")),
    "tests/lib/store/test_writer.py",
)
COPIED = ("worker", "cli", "tests", "tools", "examples")


def prepare() -> None:
    """Lay out the copy; what mutmut found out before stays, and is used again for what has not changed."""
    for name, source in {"src": "lib", **{one: one for one in COPIED}}.items():
        shutil.rmtree(PLACE / name, ignore_errors=True)
        shutil.copytree(ROOT / source, PLACE / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "pyproject.toml").read_text()
    (PLACE / "pyproject.toml").write_text(text.replace('pythonpath = [".", "lib",', 'pythonpath = [".", "src",') + config())


def config() -> str:
    """Return the section for mutmut."""
    values = {
        "source_paths": ["src"],
        "only_mutate": [f"src/settled/{one}" for one in MUTATED],
        "also_copy": [*COPIED, "src"],
        "pytest_add_cli_args_test_selection": list(TESTS),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-q"],
    }
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    return "\n[tool.mutmut]\n" + "\n".join(lines) + "\ntrack_dependencies = false\n"


def main(patterns: list[str]) -> int:
    """Run mutmut on the copy, and list what survived."""
    prepare()
    mutmut = [sys.executable, "-m", "mutmut"]
    ran = subprocess.run([*mutmut, "run", "--max-children", "2", *patterns], cwd=PLACE, check=False)
    subprocess.run([*mutmut, "results"], cwd=PLACE, check=False)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
