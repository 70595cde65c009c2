"""Encrypted texts: nothing readable anywhere, keys that rotate, and a missing key that changes nothing."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from settled import App, ConfigurationError, Operation, OperationConflictError, ProbeResult, ResultUnavailableError, Status
from settled.codec import PlainCodec, key_id_of
from settled.core.errors import PayloadKeyError
from settled.encryption import CREDENTIAL, EncryptingCodec, find_keys, new_key, parse_keys
from settled.store.audit import verify
from settled.store.reads import inbox_of
from settled.store.texts import rewrite
from tests.cli.terminal import EFFECTS, run_process

OLD, NEW = (base64.urlsafe_b64encode(bytes([number] * 32)).decode() for number in (7, 8))
MARKER = "MARKER-4711"
Make = Callable[..., App]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    made: list[App] = []

    def make(**keys: str) -> App:
        app = App(tmp_path / "settled.db", codec=EncryptingCodec(keys) if keys else None)

        @app.effect(
            name="pay", operation_id=lambda a: f"pay:{a['n']}", provider_reference=lambda a: f"ref:{a['n']}", isolation="thread",
            network_drain=0,
        )  # fmt: skip
        def pay(arguments: dict[str, Any]) -> Any:
            if arguments.get("lose"):
                raise RuntimeError("lost")
            return {"said": arguments["text"]}

        @pay.probe
        def look(arguments: dict[str, Any]) -> ProbeResult:
            return ProbeResult.committed(healthy=True, reference=f"ref:{arguments['n']}", output={"said": arguments["text"]})

        @pay.postcondition
        def met(arguments: dict[str, Any], output: Any) -> bool:
            return bool(output["said"] == arguments["text"])

        app.create_database()
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def pay(app: App, n: int, **more: Any) -> Operation:
    return app.execute("pay", {"n": n, "text": MARKER, **more}, metadata={"note": MARKER})


def stored(folder: Path) -> bytes:
    """Return every byte of every file in the folder, the ledger's log and its run directory included."""
    return b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())


@pytest.mark.promise("S29")
def test_a_marker_is_in_no_file_of_the_ledger_and_no_log(tmp_path: Path, make: Make) -> None:
    app = make(k1=OLD)
    assert pay(app, 1).result() == {"said": MARKER}
    app.submit("pay", {"n": 2, "text": MARKER})
    app.add_evidence(source="hook", provider_reference="ref:9", result=ProbeResult.committed(output={"said": MARKER}, reference="ref:9"))
    lost = pay(app, 3, lose=True)
    assert app.reconcile(lost.operation_id).result() == {"said": MARKER}
    assert app.get("pay:1").metadata == {"note": MARKER}
    app.backup(tmp_path / "copy.db")
    (tmp_path / "keys").write_text(f"k1:{OLD}\n")
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "effects.py").write_text(EFFECTS.replace('return {"paid": arguments["n"]}', "return arguments"))
    more = {"SETTLED_ENCRYPTION__KEYS_FILE": str(tmp_path / "keys"), "SETTLED_LOGS__LEVEL": "debug"}
    app.submit("pay", {"n": 4, "text": MARKER})
    worked = run_process(tmp_path, "worker", "run", "--once", "--app", "effects:app", more=more)
    assert worked.code == 0, worked
    assert app.get("pay:4").status is Status.CONFIRMED and "pay:4" in worked.err + worked.out
    assert MARKER not in worked.out + worked.err
    assert MARKER.encode() not in stored(tmp_path)
    app.submit("pay", {"n": 9, "text": MARKER})  # takes the evidence that waits for it
    assert app.get("pay:9").evidence
    assert verify(app.ledger, decode=app.shell.codec.decode) == []


@pytest.mark.promise("S29", part="identity and fingerprint stay searchable")
def test_a_repeated_request_is_known_whatever_the_key(make: Make) -> None:
    first = pay(make(k1=OLD), 1)
    app = make(k2=NEW, k1=OLD)
    again = app.submit("pay", {"n": 1, "text": MARKER})
    assert (again.created, again.fingerprint, again.result()) == (False, first.fingerprint, {"said": MARKER})
    with pytest.raises(OperationConflictError):
        app.submit("pay", {"n": 1, "text": "another"})


@pytest.mark.promise("S29", part="key rotated, old rows readable; rekey")
def test_old_rows_stay_readable_after_a_rotation_and_can_be_encrypted_anew(make: Make) -> None:
    plain = make()
    pay(plain, 0)
    pay(make(k1=OLD), 1)
    app = make(k2=NEW, k1=OLD)
    pay(app, 2)
    assert [app.get(f"pay:{n}").result() for n in (0, 1, 2)] == [{"said": MARKER}] * 3
    codec = app.shell.codec
    assert isinstance(codec, EncryptingCodec)

    def anew(text: str) -> str | None:
        return None if codec.is_current(text) else codec.encode(codec.decode(text))

    assert rewrite(app.ledger, anew) == (9, 6)
    assert rewrite(app.ledger, anew) == (9, 0)
    only_new = make(k2=NEW)
    assert [only_new.get(f"pay:{n}").result() for n in (0, 1, 2)] == [{"said": MARKER}] * 3
    assert verify(only_new.ledger, decode=only_new.shell.codec.decode) == []


@pytest.mark.promise("S29", part="wrong key: an error that names its ID, status untouched")
@pytest.mark.parametrize("keys", [{}, {"k2": NEW}, {"k1": NEW}], ids=["none", "missing", "wrong"])
def test_without_its_key_a_row_is_left_alone_and_the_key_is_named(make: Make, keys: dict[str, str]) -> None:
    known = make(k1=OLD)
    pay(known, 1)
    known.submit("pay", {"n": 2, "text": MARKER})
    pay(known, 3, lose=True)
    app = make(**keys)
    shown = app.get("pay:1")
    assert (shown.status, shown.has_output) == (Status.CONFIRMED, False)
    with pytest.raises(ResultUnavailableError, match="'k1'"):
        shown.result()
    with pytest.raises(PayloadKeyError, match="'k1'"):
        app.execute("pay", {"n": 2, "text": MARKER})
    app.reconcile("pay:3")
    with pytest.raises(PayloadKeyError, match="'k1'"):
        app.add_evidence(source="hook", operation_id="pay:3", result=ProbeResult.committed(output={"said": MARKER}, reference="ref:3"))
    assert pay(app, 5).status is Status.CONFIRMED  # others go on
    assert [known.get(f"pay:{n}").status for n in (1, 2, 3)] == [Status.CONFIRMED, Status.PREPARED, Status.OUTCOME_UNKNOWN]
    assert len(known.events("pay:2")) == 1
    assert any("'k1'" in finding.problem for finding in verify(app.ledger, decode=app.shell.codec.decode))


def test_evidence_that_cannot_be_read_waits_and_holds_up_nobody(make: Make) -> None:
    known = make(k1=OLD)
    for n in (1, 2):
        answer = ProbeResult.committed(output={"said": MARKER}, reference=f"ref:{n}")
        known.add_evidence(source="hook", provider_reference=f"ref:{n}", result=answer)
    app = make(k2=NEW)
    assert app.submit("pay", {"n": 1, "text": MARKER}).status is Status.PREPARED
    with app.ledger.read() as transaction:
        assert len(inbox_of(transaction, "ref:1")) == 1
    both = make(k1=OLD, k2=NEW)
    assert both.submit("pay", {"n": 2, "text": MARKER}).reason == "evidence_before_dispatch"
    with both.ledger.read() as transaction:
        assert not inbox_of(transaction, "ref:2")


def test_evidence_is_left_out_where_nobody_can_tell_what_of_it_is_sensitive(make: Make) -> None:
    known, app = make(k1=OLD), make(k2=NEW)
    terms: dict[str, Any] = {"isolation": "thread", "sensitive_fields": ("card",), "outcome_probe": ProbeResult.unknown}
    for one in (known, app):
        one.effect(name="hush", operation_id=lambda a: "hush:1", **terms)(lambda: 1 / 0)
    known.execute("hush", {"card": MARKER})
    app.add_evidence(source="hook", operation_id="hush:1", result=ProbeResult.unknown(evidence={"seen": MARKER}))
    last = app.events("hush:1")[-1]
    assert last.type == "probe_unknown" and MARKER not in str(last.data)


def test_keys_are_found_in_the_file_the_environment_or_the_credentials(tmp_path: Path) -> None:
    file = tmp_path / CREDENTIAL
    file.write_text(f"# ours\n\nk2:{NEW}\nk1:{OLD}\n")
    file.chmod(0o600)
    both = {"k2": NEW, "k1": OLD}
    assert find_keys(str(file), None, {}) == both
    assert find_keys(None, f"k2:{NEW},k1:{OLD}", {}) == both
    assert find_keys(None, None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == both
    assert find_keys(None, None, {"CREDENTIALS_DIRECTORY": str(tmp_path / "none")}) is None
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="everybody"):
        find_keys(str(file), None, {})


@pytest.mark.parametrize("text", ["", "k1", f"k1:{OLD}\nk1:{NEW}", ":x", "# only"])
def test_what_is_no_list_of_keys_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_keys(text, "here")


@pytest.mark.parametrize("keys", [{}, {"a b": OLD}, {"k:1": OLD}, {"k1": "short"}, {"k1": "ü" * 44}])
def test_what_is_no_key_is_refused_and_never_shown(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        EncryptingCodec(keys)
    assert not any(key in str(refused.value) for key in keys.values())


def test_a_plain_text_is_never_taken_for_an_encrypted_one() -> None:
    codec = EncryptingCodec({"k1": OLD})
    for text in ('{"a":1}', '"enc1:k1:x"', "null", "true", "-1", "[]"):
        assert PlainCodec().decode(text) == codec.decode(text) == codec.decode(codec.encode(text)) == text
        assert key_id_of(codec.encode(text)) == "k1"
    with pytest.raises(PayloadKeyError):
        PlainCodec().decode(codec.encode("{}"))
    assert codec.encode("{}") != codec.encode("{}")
    assert new_key() != new_key()
