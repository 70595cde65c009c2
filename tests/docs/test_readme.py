"""The README's first screen is what it says it is: one example that fits, and that does what the page says when it is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = "import sys; from settled_cli.main import main; sys.argv[0] = 'settled'; sys.exit(main())"


def example() -> str:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]


def test_the_first_screen_is_one_sentence_one_short_example_and_the_table_of_crashes() -> None:
    sentence, _, rest = README.removeprefix("# settled\n\n").partition("\n\n")
    assert sentence.count(". ") == 0 and sentence.endswith(".")
    assert rest.startswith("```python")
    assert len(example().splitlines()) <= 20
    assert README.index("| it crashes … |") < README.index("\n## ")


def test_the_example_of_the_readme_runs_as_written_and_sends_one_mail(tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(example(), encoding="utf-8")
    path = os.pathsep.join(str(ROOT / top) for top in ("lib", "worker", "cli"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")} | {"PYTHONPATH": path}

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-c", CLI, "init")
    assert run("mail.py") == "prepared\n"
    run("-c", CLI, "worker", "run", "--app", "mail:app", "--once")
    assert "confirmed" in run("-c", CLI, "op", "show", "welcome:ana@example.org")
    assert run("mail.py") == "confirmed\n"
    assert (tmp_path / "outbox.txt").read_text(encoding="utf-8") == "welcome:ana@example.org\n"
