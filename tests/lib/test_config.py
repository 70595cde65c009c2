"""Settings: four places in one order, and no mistake passed over."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from settled.config import Loaded, Settings, load_settings, resolve_database, shown_settings
from settled.config.environment import Environment
from settled.config.sources import DELIMITER, PREFIX, from_environment
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS

Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_from(toml: str | None = None, environ: Mapping[str, str] | None = None, **flags: Any) -> Loaded:
        if toml is not None:
            (tmp_path / "settled.toml").write_text(toml)
        named = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(named, config_file=None, environ=environ or {}, cwd=tmp_path)

    return load_from


def refusal(load: Load, toml: str | None = None, environ: Mapping[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(toml, environ, **flags)
    assert caught.value.exit_code == 78
    return str(caught.value)


# Where a value comes from


@pytest.mark.promise("S71")
def test_a_flag_wins_over_the_environment_over_the_file_over_the_default_and_each_says_its_origin(load: Load) -> None:
    toml = "[worker]\nslots = 1\nbatch_max = 1\npoll_seconds = 1.5\n"
    environ = {"SETTLED_WORKER__SLOTS": "2", "SETTLED_WORKER__BATCH_MAX": "2"}
    loaded = load(toml, environ, worker__slots=3)
    worker = loaded.settings.worker
    assert (worker.slots, worker.batch_max, worker.poll_seconds, worker.lease_seconds) == (3, 2, 1.5, DEFAULTS.lease_seconds)
    names = ("slots", "batch_max", "poll_seconds", "lease_seconds")
    origins = [loaded.origins[f"worker.{name}"] for name in names]
    assert origins == ["flag", "SETTLED_WORKER__BATCH_MAX", "settled.toml", "default"]


TEXTS = ("environment.db", "", " ", "null", '"a.db"', '{"a": 1}', "[1]", "1", "sqlite:////var/a.db")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("names", [("DATABASE",), ("database",), ("APP",), ("DATABASE", "APP"), ("DATABASE", "database")], ids="+".join)
def test_a_text_in_the_environment_is_read_as_pydantic_settings_reads_it(names: tuple[str, ...], text: str) -> None:
    given = {PREFIX + name: text + name for name in names}
    source = from_environment(given)
    assert (source.values, source.variables) == (Environment(Settings, given, PREFIX, DELIMITER)(), tuple(given))


def test_a_program_that_is_told_its_ledger_by_the_environment_imports_no_pydantic_settings(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from settled.config import load_settings\n"
        "loaded = load_settings({}, config_file=None, environ=os.environ, cwd=Path.cwd())\n"
        "print(loaded.settings.database, 'pydantic_settings' in sys.modules)"
    )
    environ = {**os.environ, "SETTLED_DATABASE": "a.db", "SETTLED_APP": "shop:app"}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["a.db", "False"]


def test_an_option_that_was_not_given_hides_nothing(load: Load) -> None:
    assert load("app = 'shop.effects:app'", app=None).settings.app == "shop.effects:app"


def test_the_process_environment_is_read_only_where_it_is_passed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_WORKER__SLOTS", "9")
    assert load().settings.worker.slots == DEFAULTS.slots


def test_an_empty_file_leaves_every_safeguard_on(load: Load) -> None:
    settings = load("").settings
    assert settings.worker.lease_seconds == DEFAULTS.lease_seconds
    for name in ("leases", "reconcile", "escalate", "checkpoint", "retention"):
        sweep = getattr(settings.sweeps, name)
        assert sweep.enabled
        assert sweep.every_seconds
    assert load("").origins["sweeps.leases.every_seconds"] == "default"


def test_a_section_may_stand_in_one_variable_as_json(load: Load) -> None:
    loaded = load(environ={"SETTLED_WORKER": '{"slots": 7}', "SETTLED_REDACTIONS": '["sk_\\\\w+"]'})
    assert loaded.settings.worker.slots == 7
    assert loaded.origins["worker.slots"] == "SETTLED_WORKER"
    assert loaded.settings.redactions[0].pattern == r"sk_\w+"


def test_a_stronger_schedule_replaces_a_weaker_one_of_the_other_kind(load: Load) -> None:
    environ = {"SETTLED_SWEEPS__RETENTION__CRON": "0 3 * * mon-fri"}
    loaded = load("[sweeps.retention]\nevery_seconds = 60", environ)
    assert loaded.settings.sweeps.retention.cron == "0 3 * * mon-fri"
    assert loaded.settings.sweeps.retention.every_seconds is None
    assert loaded.origins["sweeps.retention.cron"] == "SETTLED_SWEEPS__RETENTION__CRON"


# Mistakes


@pytest.mark.promise("S71")
@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[worker]\nslotz = 1", "settled.toml: worker.slotz is not a setting; did you mean slots?"),
        ("[wrker]\nslots = 1", "settled.toml: wrker is not a setting; did you mean worker?"),
        ("[sweeps.lease]\nevery_seconds = 1", "settled.toml: sweeps.lease is not a setting; did you mean leases?"),
        (
            "[contracts.refund]\nprobe_attempt_max = 3",
            "settled.toml: contracts.refund.probe_attempt_max is not a setting; did you mean probe_attempts_max?",
        ),
    ],
)
def test_a_typo_is_named_with_its_full_path_and_the_nearest_name(load: Load, toml: str, sentence: str) -> None:
    assert refusal(load, toml) == sentence


@pytest.mark.promise("S71")
@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SETTLED_WORKER__SLOT", "slots"),
        ("SETTLED_WORKER_SLOTS", "SETTLED_WORKER__SLOTS"),
        ("SETTLED_DATABASE_URL", "SETTLED_DATABASE"),
        ("SETTLED_DATABASE__PATH", "SETTLED_DATABASE"),
        ("SETTLED_WRKER__SLOTS", "SETTLED_WORKER__SLOTS"),
    ],
)
def test_a_misspelt_variable_is_not_passed_over(load: Load, variable: str, meant: str) -> None:
    said = refusal(load, environ={variable: "1"})
    assert variable in said
    assert said.endswith(f"did you mean {meant}?")


def test_variables_of_other_programs_are_left_alone(load: Load) -> None:
    load(environ={"SETTLED_INCARNATION": "x", "SETTLED_CONFIG": "a", "SETTLED_CANARY_PORT": "1", "PATH": "/bin"})


DURATIONS = [
    "worker.lease_seconds",
    "worker.beat_seconds",
    "worker.poll_seconds",
    "worker.drain_seconds",
    "worker.hung_seconds",
    *(f"sweeps.{name}.every_seconds" for name in ("leases", "reconcile", "escalate", "checkpoint", "retention")),
    "contracts.refund.probe_interval_seconds",
    "contracts.refund.unknown_age_max_seconds",
    "health.oldest_due_seconds",
]
COUNTS = [
    *(f"worker.{name}" for name in ("slots", "process_runners", "batch_max", "abandoned_max")),
    *(f"limits.{name}" for name in ("arguments_bytes_max", "result_bytes_max", "error_text_max")),
]


@pytest.mark.parametrize("option", [*DURATIONS, *COUNTS])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "''", "' '", "true", "'soon'", "[]"])
def test_a_value_that_would_switch_a_safeguard_off_is_refused_by_its_name(load: Load, option: str, value: str) -> None:
    section, _, name = option.rpartition(".")
    assert f"settled.toml: {option} is " in refusal(load, f"[{section}]\n{name} = {value}")


@pytest.mark.parametrize("option", [*DURATIONS, *COUNTS])
@pytest.mark.parametrize("value", ["0", "-1", "", "nan"])
def test_the_same_holds_for_the_environment(load: Load, option: str, value: str) -> None:
    variable = "SETTLED_" + option.upper().replace(".", "__")
    assert f"{variable}: {option} is " in refusal(load, environ={variable: value})


def test_every_mistake_is_said_at_once(load: Load) -> None:
    said = refusal(load, "[worker]\nslots = 0\nlease_seconds = 0\n[logs]\nformat = 'xml'")
    assert said.count("\n") == 2
    assert "worker.slots" in said
    assert "worker.lease_seconds" in said
    assert "logs.format is 'xml', but must be 'auto', 'json' or 'console'" in said


@pytest.mark.parametrize("toml", ["lease_seconds = 30\nbeat_seconds = 10.1", "lease_seconds = 29.9", "beat_seconds = 15"])
def test_a_beat_above_a_third_of_the_lease_is_refused(load: Load, toml: str) -> None:
    assert "worker.beat_seconds is " in refusal(load, "[worker]\n" + toml)


def test_a_beat_of_exactly_a_third_of_the_lease_is_accepted(load: Load) -> None:
    assert load("[worker]\nlease_seconds = 3\nbeat_seconds = 1").settings.worker.beat_seconds == 1


@pytest.mark.promise("S56")
@pytest.mark.parametrize("weekday", ["mon-fri", "mon,wed", "SUN", "*"])
def test_a_weekday_by_name_is_accepted(load: Load, weekday: str) -> None:
    assert load(f"[sweeps.retention]\ncron = '30 3 * * {weekday}'").settings.sweeps.retention.cron == f"30 3 * * {weekday}"


@pytest.mark.promise("S56")
@pytest.mark.parametrize("weekday", ["1-5", "0", "7", "mon-5", "*/2", "mon,3"])
def test_a_weekday_by_number_is_refused_because_two_conventions_disagree(load: Load, weekday: str) -> None:
    said = refusal(load, f"[sweeps.retention]\ncron = '30 3 * * {weekday}'")
    assert f"sweeps.retention.cron names weekdays by number ({weekday})" in said
    assert "mon-fri" in said


@pytest.mark.parametrize("line", ["", "* * * *", "61 * * * *", "0 0 30 2 *", "@daily", "* * * * * *"])
def test_a_crontab_line_that_cannot_run_is_refused(load: Load, line: str) -> None:
    assert "sweeps.escalate.cron" in refusal(load, f"[sweeps.escalate]\ncron = '{line}'")


def test_a_sweep_with_two_schedules_in_one_place_is_refused(load: Load) -> None:
    assert "either every_seconds or cron" in refusal(load, "[sweeps.leases]\nevery_seconds = 1\ncron = '* * * * *'")


@pytest.mark.parametrize(
    "toml",
    ["x = [", "worker = 3", "contracts = 1", "redactions = ['(']", "redactions = ['']", "app = 'shop'", "database = ''", "_env_file = 'x'"],
)
def test_a_file_that_makes_no_sense_is_refused(load: Load, toml: str) -> None:
    refusal(load, toml)


def test_a_settings_file_that_is_named_must_exist_and_be_text(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (missing, binary, tmp_path):
        with pytest.raises(ConfigurationError, match=file.name):
            load_settings({}, config_file=file, environ={}, cwd=tmp_path)


# Which ledger


@pytest.mark.promise("S71", "S123")
def test_the_database_is_taken_from_flag_then_app_then_environment_then_file_then_default(load: Load, tmp_path: Path) -> None:
    environ = {"SETTLED_DATABASE": "environment.db"}
    plain, with_file = load(), load("database = 'file.db'")
    with_both = load(None, environ)
    assert resolve_database("flag.db", None, environ, with_both) == ("flag.db", "flag")
    assert resolve_database(None, "app.db", environ, with_both) == ("app.db", "App(database=)")
    assert resolve_database(None, None, environ, with_both) == ("environment.db", "SETTLED_DATABASE")
    assert resolve_database(None, None, {}, with_file) == (str(tmp_path / "file.db"), "settled.toml")
    assert resolve_database(None, None, {}, plain) == ("./settled.db", "./settled.db")
    assert resolve_database(None, None, {}, None) == ("./settled.db", "./settled.db")
    assert with_both.origins["database"] == "SETTLED_DATABASE"
    assert plain.origins["database"] == "./settled.db"


@pytest.mark.promise("S123")
def test_a_flag_against_an_explicit_app_is_refused_and_both_are_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_database("flag.db", "app.db", {}, None)
    assert caught.value.exit_code == 78
    assert "flag.db" in str(caught.value)
    assert "app.db" in str(caught.value)


@pytest.mark.promise("S123")
def test_one_file_by_another_spelling_is_no_contradiction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for flag in ("real/a.db", "./real/../real/a.db", "link/a.db", str(tmp_path / "link/a.db"), f"sqlite:///{tmp_path}/real/a.db", "sqlite:///link/a.db"):
        assert resolve_database(flag, tmp_path / "real" / "a.db", {}, None) == (flag, "flag")
    with pytest.raises(ConfigurationError):
        resolve_database("link/b.db", "real/a.db", {}, None)


def test_a_flag_that_went_through_the_settings_is_still_a_flag(load: Load) -> None:
    loaded = load(database="flag.db")
    assert resolve_database(None, None, {"SETTLED_DATABASE": "environment.db"}, loaded) == ("flag.db", "flag")
    with pytest.raises(ConfigurationError):
        resolve_database(None, "app.db", {}, loaded)


@pytest.mark.parametrize(
    ("flag", "app", "environ"),
    [("", None, {}), (None, " ", {}), (None, None, {"SETTLED_DATABASE": ""}), ("", "a.db", {})],
)
def test_a_blank_name_is_refused_and_never_means_another_ledger(flag: str | None, app: str | None, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="blank"):
        resolve_database(flag, app, environ, None)


def test_a_database_in_a_file_means_the_same_ledger_from_every_folder(tmp_path: Path) -> None:
    file = tmp_path / "etc" / "shop.toml"
    file.parent.mkdir()
    file.write_text("database = 'shop.db'")
    loaded = load_settings({}, config_file=Path(os.path.relpath(file)), environ={}, cwd=tmp_path)
    chosen = resolve_database(None, None, {}, loaded)
    assert Path(chosen.url_or_path).resolve() == file.parent / "shop.db"
    assert chosen.origin.endswith("shop.toml")
    assert loaded.config_file is not None


# What is shown


@pytest.mark.promise("S71")
def test_secrets_are_masked_where_settings_are_shown(load: Load) -> None:
    environ = {"SETTLED_DATABASE": "postgresql://ann:hunter2@db/ledger?sslpassword=hunter3&sslmode=require"}
    loaded = load("redactions = ['hunter4', 'x']", environ)
    shown = {setting.name: setting for setting in shown_settings(loaded)}
    assert shown["database"].value == "postgresql://ann:***@db/ledger?sslpassword=***&sslmode=require"
    assert shown["database"].origin == "SETTLED_DATABASE"
    assert shown["redactions"].value == ["***", "***"]
    assert "hunter" not in str(shown)
    assert shown["worker.slots"] == ("worker.slots", DEFAULTS.slots, "default")


def test_a_refusal_does_not_show_the_password_of_either_database() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_database("postgresql://a:hunter2@h/one", "postgresql://a:hunter3@h/two", {}, None)
    assert "hunter" not in str(caught.value)
