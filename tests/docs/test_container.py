"""The container file, read line by line: no image is built here, for that needs a registry."""

import json
import re
from pathlib import Path

from settled_cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    found = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


def test_the_container_runs_the_worker_without_rights_below_a_first_process_that_reaps() -> None:
    lines = instructions((ROOT / "deploy" / "Containerfile").read_text())
    assert {name for name, _ in lines} <= KNOWN
    last = dict(lines)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"]), "a number, and not root's"
    uid, gid = last["USER"].split(":")
    made = next(rest for name, rest in lines if name == "RUN" and "useradd" in rest)
    assert f"--uid {uid}" in made and f"--gid {gid}" in made and " tini" in made
    names = [name for name, _ in lines]
    assert max(index for index, name in enumerate(names) if name == "RUN") < names.index("USER"), "nothing is installed by the user"
    first = json.loads(last["ENTRYPOINT"])
    assert first == ["tini", "--", "settled"] and last["STOPSIGNAL"] == "SIGTERM"
    health = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    assert health == ["settled", "health"]
    called = json.loads(last["CMD"])
    known = {name: command for name in cli.table if (command := cli.get_command(None, name)) is not None}  # type: ignore[attr-defined, arg-type]
    assert health[1] in known and called[0] in known and called[1] in known[called[0]].commands  # type: ignore[attr-defined]
    folder = last["VOLUME"]
    assert f"SETTLED_DATABASE={folder}/" in last["ENV"] and folder in made
