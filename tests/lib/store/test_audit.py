"""The audit finds what was changed behind the ledger's back, and nothing where all is as recorded."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from settled.core.canonical import fingerprint
from settled.core.fold import Event
from settled.core.words import EventType, Status
from settled.store import pauses
from settled.store.audit import head, verify
from settled.store.audit_export import export
from settled.store.ledger import Ledger
from settled.store.notes import note_adoption
from settled.store.requests import identity_digest, set_derived
from settled.store.writer import Move, record
from tests.lib.store.ledgers import (
    NOW_US,
    a_request,
    another_program,
    dispatched,
    moved,
    new_ledger,
    rows,
    run_python,
    settle,
    submit,
    tampered,
    timed_out,
)

DOCS = Path(__file__).parents[3] / "docs" / "audit.md"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with a confirmed, an unknown and a prepared operation: eight events under four seals."""
    made = new_ledger(tmp_path)
    first, second, _ = submit(made, "op-a", "op-b", "op-c")
    settle(made, first)
    moved(made, timed_out(moved(made, dispatched(second))[0]))
    return made


def problems(ledger: Ledger, **more: object) -> list[tuple[str | None, int | None]]:
    return [(found.operation_id, found.sequence) for found in verify(ledger, **more)]  # type: ignore[arg-type]


def test_an_untouched_ledger_has_no_findings_and_the_audit_tells_its_progress(ledger: Ledger) -> None:
    seen: list[int] = []
    assert verify(ledger, seen.append) == []
    assert seen == [3]


def test_an_empty_ledger_has_no_findings_and_a_head(tmp_path: Path) -> None:
    made = new_ledger(tmp_path)
    assert verify(made) == []
    assert head(made).seal_id == 0


@pytest.mark.promise("S09", part="an event changed by another program is found by ID and sequence")
@pytest.mark.parametrize(
    "change",
    [
        "type = 'raised'",
        "status = 'quarantined'",
        "attempt = 7",
        "at_us = at_us + 1",
        "data = replace(data, '1', '2')",
        "data = NULL",
        "data = '{broken'",
        "hash = zeroblob(32)",
        "data = CAST(x'ff' AS TEXT)",
    ],
)
def test_each_changed_column_of_an_event_is_found(ledger: Ledger, change: str) -> None:
    changed = tampered(ledger, f"UPDATE event SET {change} WHERE operation = 1 AND sequence = 2")
    found = problems(changed)
    assert found, change
    assert ("op-a", 2) in found or any(operation_id == "op-a" for operation_id, _ in found)
    assert not any(operation_id in ("op-b", "op-c") for operation_id, _ in found)


@pytest.mark.promise("S09", part="a deleted event is found, the last one of an operation too")
@pytest.mark.parametrize(("sequence", "also"), [(2, ""), (3, ""), (3, "UPDATE operation SET sequence = 2 WHERE id = 1")])
def test_a_deleted_event_is_found(ledger: Ledger, sequence: int, also: str) -> None:
    changed = tampered(ledger, f"DELETE FROM event WHERE operation = 1 AND sequence = {sequence}", *([also] if also else []))
    texts = [found.problem for found in verify(changed)]
    assert any("seal 3 covers 1 events, 0 are there" in text or "seal 2 covers 1 events, 0 are there" in text for text in texts)
    if not also:
        assert ("op-a", sequence) in problems(changed)


EVERY_BYTE = """
import sys, time
from pathlib import Path
from settled.store.audit import verify
from settled.store.ledger import Ledger
from settled.store.sqlite_library import sqlite_module

def changed(value):
    if value is None:
        yield "{}"
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    else:
        raw = value if isinstance(value, bytes) else value.encode()
        for index in range(len(raw)):
            other = raw[:index] + bytes([raw[index] ^ 1]) + raw[index + 1 :]
            yield other if isinstance(value, bytes) else other.decode()
        yield raw[:-1] if isinstance(value, bytes) else raw[:-1].decode()

ledger = Ledger(sys.argv[1], monotonic_us=lambda: time.monotonic_ns() // 1000)
db = sqlite_module().connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA ignore_check_constraints=ON")
tried, missed = 0, []
for table, key in (("event", ("operation", "sequence")), ("seal", ("id",))):
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    for row in db.execute(f"SELECT * FROM {table}").fetchall():
        where = " AND ".join(f"{name} = ?" for name in key)
        ids = [row[names.index(name)] for name in key]
        for name, value in zip(names, row):
            for other in changed(value):
                db.execute("BEGIN")
                try:
                    db.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (other, *ids))
                except sqlite_module().IntegrityError:  # this place in the table is taken
                    db.execute("ROLLBACK")
                    continue
                db.execute("COMMIT")
                tried += 1
                if not verify(ledger, findings_max=1):
                    missed.append((table, ids, name, other))
                now = [other if one in key and one == name else value_of for one, value_of in zip(key, ids)]
                db.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (value, *now))
assert verify(ledger) == []
print(tried, missed)
"""


@pytest.mark.promise("S09", part="any byte of any event and of any seal")
def test_any_changed_byte_of_any_event_and_any_seal_is_found(tmp_path: Path) -> None:
    made = new_ledger(tmp_path)
    settle(made, *submit(made, "op-a"))
    changed = tampered(made)
    changed.close()
    tried, missed = run_python(EVERY_BYTE, str(changed.path)).split(" ", 1)
    assert (missed.strip(), int(tried) > 500) == ("[]", True)


REWRITE = """
import sys
from settled.store.sqlite_library import sqlite_module
from settled.store.writer import event_hash
from settled.core.fold import Event
db = sqlite_module().connect(sys.argv[1], isolation_level=None)
db.execute("UPDATE event SET at_us = at_us + 1 WHERE operation = 1 AND sequence = 3")
chain = db.execute("SELECT hash FROM event WHERE operation = 1 AND sequence = 2").fetchone()[0]
row = db.execute("SELECT type, status, attempt, at_us, data FROM event WHERE operation = 1 AND sequence = 3").fetchone()
new = event_hash(chain, "op-a", 3, Event(*row[:4], {}), row[4])
db.execute("UPDATE event SET hash = ? WHERE operation = 1 AND sequence = 3", (new,))
db.execute("UPDATE operation SET chain = ?, updated_us = updated_us + 1 WHERE id = 1", (new,))
"""


@pytest.mark.promise("S09", part="a chain that was rebuilt with its row is found by the seal")
def test_a_rebuilt_chain_is_found_by_its_seal(ledger: Ledger) -> None:
    changed = tampered(ledger)
    run_python(REWRITE, str(changed.path))
    found = [one.problem for one in verify(changed)]
    assert any(text.startswith("seal 3 does not match its events") for text in found)


@pytest.mark.promise("S09", part="events and seals that were cut together are found against a head kept elsewhere")
def test_a_cut_tail_is_found_against_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    made = new_ledger(tmp_path)
    submit(made, "op-a")
    submit(made, "op-b")
    kept = head(made)
    changed = tampered(
        made,
        "DELETE FROM seal WHERE id = 2",
        "DELETE FROM event WHERE operation = 2",
        "DELETE FROM operation WHERE id = 2",
        "DELETE FROM payload WHERE operation = 2",
        "UPDATE tally SET count = 1",
    )
    assert verify(changed) == []
    assert [found.problem for found in verify(changed, expected=kept)] == [
        "seal 2 is missing: the ledger ends at seal 1, before a head that was kept elsewhere"
    ]
    submit(changed, "op-other")
    assert "is not the one whose head was kept elsewhere" in verify(changed, expected=kept)[0].problem


@pytest.mark.promise("S22", part="one edited row is named")
@pytest.mark.parametrize(
    "change",
    [
        "status = 'confirmed'",
        "attempt = 2",
        "version = 9",
        "open_attempts = 0",
        "unfenced = 1",
        "unknown_since_us = 1",
        "escalate_us = NULL",
        "provider_key = 'other'",
        "provider_reference = NULL",
        "fingerprint = x'11'",
        "contract_version = '2'",
        "operation_id = 'op-z'",
        "duplicate_suspected = 1",
        "updated_us = 5",
        "created_us = 5",
        "terms = 9",
        "status = 'pending'",
        "chain = x'00'",
        "risk = 'low'",
        "queue = 'other'",
        "priority = 5",
        "deadline_us = 5",
    ],
)
def test_an_edited_row_is_found_by_its_id(ledger: Ledger, change: str) -> None:
    changed = tampered(ledger, f"UPDATE operation SET {change} WHERE id = 2")
    assert {operation_id for operation_id, _ in problems(changed)} & {"op-b", "op-z"}
    assert "op-a" not in {operation_id for operation_id, _ in problems(changed)}


@pytest.mark.parametrize(
    ("part", "what"), [(0, "arguments"), (-1, "metadata"), (3, "output (event 3)")]
)
def test_a_changed_text_is_found_and_a_purged_one_is_no_finding(tmp_path: Path, part: int, what: str) -> None:
    made = new_ledger(tmp_path)
    settle(made, *submit(made, "op-a", "op-b", metadata='{"run":"7"}'))
    assert verify(made) == []
    changed = tampered(made, f"UPDATE payload SET body = replace(body, '1', '2') || ' ' WHERE operation = 1 AND part = {part}")
    assert verify(changed) == [("op-a", None, f"the stored text of its {what} is not the one that was recorded")]
    purged = tampered(changed, f"DELETE FROM payload WHERE operation = 1 AND part = {part}")
    assert verify(purged) == []
    planted = tampered(purged, "INSERT INTO payload VALUES (2, 7, '{}')")
    assert [found.problem for found in verify(planted)] == ["a text that no event names is stored as its output (event 7)"]


OTHER_TEXT = "UPDATE payload SET body = '{}' WHERE operation = 2"
OTHER_FINGERPRINT = f"UPDATE operation SET fingerprint = x'{hashlib.sha256(b'{}').hexdigest()}' WHERE id = 2"


@pytest.mark.parametrize("changes", [(OTHER_TEXT,), (OTHER_FINGERPRINT,), (OTHER_TEXT, OTHER_FINGERPRINT)])
def test_arguments_that_their_fingerprint_alone_binds_cannot_change_either(tmp_path: Path, changes: tuple[str, ...]) -> None:
    made = new_ledger(tmp_path)
    submit(made, "op-a", "op-b", "op-c", fingerprint=fingerprint(a_request().arguments), whole=True)
    assert ["arguments" in row[0] for row in rows(made, "SELECT data FROM event")] == [False] * 3
    assert verify(made) == []
    found = {(one.operation_id, one.problem.partition(" (")[0]) for one in verify(tampered(made, *changes))}
    text = ("op-b", "the stored text of its arguments is not the one that was recorded")
    identity = ("op-b", "its identity")
    assert found == ({text, identity} if changes == (OTHER_FINGERPRINT,) else {identity} if len(changes) == 2 else {text})


def test_a_request_by_name_is_bound_to_what_was_derived_later(tmp_path: Path) -> None:
    made = new_ledger(tmp_path)
    (row,) = submit(made, "op-n", derived=False, contract_version=None, provider_key=None, provider_reference=None)
    facts = {
        "contract_version": "1", "queue": "default", "risk": "high",
        "provider_key": "k", "provider_reference": "r", "fingerprint": "json1:00",
    }  # fmt: skip
    with made.write() as transaction:
        data = {"terms": 1, "request": identity_digest(row._replace(derived=1, **facts)), **facts}
        record(transaction, [Move(row, [Event(EventType.DERIVED, Status.PREPARED, 0, NOW_US, data)])])
        set_derived(transaction, row.id, facts)
    assert verify(made) == []
    changed = tampered(made, "UPDATE operation SET provider_key = 'other'")
    assert problems(changed) == [("op-n", None)]


@pytest.mark.promise("S86", part="a tally changed by hand is found")
@pytest.mark.parametrize(
    "change", ["UPDATE tally SET count = count + 1 WHERE status = 'confirmed'", "DELETE FROM tally", "DELETE FROM operation WHERE id = 3"]
)
def test_a_tally_that_does_not_match_the_rows_is_found(ledger: Ledger, change: str) -> None:
    assert any(text.startswith("the tally of capture_payment") for text in [found.problem for found in verify(tampered(ledger, change))])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM seal WHERE id = 2", "seals 2 to 2 are missing"),
        ("UPDATE seal SET head = zeroblob(32) WHERE id = 2", "seal 2 does not match"),
        ("UPDATE seal SET at_us = at_us + 1 WHERE id = 2", "the time of seal 2"),
        ("UPDATE seal SET events = 2 WHERE id = 2", "seal 2 covers 2 events, 1 are there"),
        ("UPDATE event SET seal = 3 WHERE operation = 1 AND sequence = 2", "seal 2 covers 1 events, 0 are there"),
        ("INSERT INTO event VALUES (99, 1, 'submitted', 'prepared', 0, 1, NULL, x'00', 2)", "events of an operation that is not there"),
        ("INSERT INTO terms (digest, body) VALUES ('00', '{}')", "the stored terms 1"),
    ],
)
def test_damage_outside_the_operations_is_found(ledger: Ledger, change: str, says: str) -> None:
    assert any(says in found.problem for found in verify(tampered(ledger, change)))


def test_damaged_pages_become_findings_and_no_error(ledger: Ledger) -> None:
    submit(ledger, *(f"more-{number}" for number in range(200)))
    ledger.close()
    assert another_program(ledger.path, "PRAGMA journal_mode=delete")[0] == ["delete"]
    page = another_program(ledger.path, "SELECT rootpage FROM sqlite_master WHERE name = 'event'")[0][0]
    overwrite = "import sys; f = open(sys.argv[1], 'r+b'); f.seek((int(sys.argv[2]) - 1) * 4096); f.write(b'\\xff' * 4096)"
    run_python(overwrite, str(ledger.path), str(page))
    assert verify(ledger)


def test_findings_are_bounded(ledger: Ledger) -> None:
    submit(ledger, *(f"more-{number}" for number in range(50)))
    changed = tampered(ledger, "UPDATE event SET at_us = 1")
    assert len(verify(changed, findings_max=7)) == 7


@pytest.mark.promise("S09", part="head and export agree, and the lines of docs/audit.md verify an export")
def test_the_lines_of_the_manual_verify_an_export_and_refuse_a_changed_one(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.write() as transaction:  # beside the chain: they are exported, and disturb nothing
        pauses.add(transaction, "all", "", reason="a drill", actor="ana", os_user="root", principal="os:root", at_us=NOW_US)
        note_adoption(transaction, {"reason": "a new disk", "os_user": "root", "moved": True, "marked": 0, "at_us": NOW_US})
    lines = [json.dumps(row) for row in export(ledger)]
    assert {json.loads(line)["kind"] for line in lines} == {"head", "event", "pause", "adoption", "seal"}
    assert json.loads(lines[-1])["head"] == json.loads(lines[0])["head"] == head(ledger).hex
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    script = tmp_path / "verify.py"
    script.write_text(code.group(1), encoding="utf-8")

    def judged(changed: list[str]) -> tuple[int, str]:
        command, text = [sys.executable, str(script)], "\n".join(changed)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout + done.stderr

    assert judged(lines) == (0, f"verified up to seal 5, head {head(ledger).hex}\n")
    chained = [number for number, line in enumerate(lines) if json.loads(line)["kind"] in ("event", "seal")]
    for number in chained:
        assert judged(lines[:number] + lines[number + 1 :])[0] != 0, f"a missing line {number} passed"
    assert judged([line.replace("timed_out", "raised") for line in lines])[0] != 0


def test_an_export_holds_no_arguments_and_no_outputs(ledger: Ledger) -> None:
    text = "\n".join(json.dumps(row) for row in export(ledger))
    assert "secret_argument" not in text
    assert "captured" not in text
