"""What a contract refuses when it is declared, what it is where nothing is said, and how its callbacks are bound."""

import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from settled import App, ConfigurationError, EffectContract, ProbeResult, RetryPolicy
from settled.core.terms import Terms
from settled_worker.worker import check_contracts
from tests.lib.apps.bench import ARGUMENTS, KEY, OPERATION_ID, Bench, guaranteed, key_of, operation_id_of, run, seen


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


def contract(**terms: Any) -> EffectContract:
    return EffectContract(**({"name": "capture_payment", "operation_id": operation_id_of} | terms))


@pytest.mark.promise("P05")
@pytest.mark.parametrize("name", ["", " ", " capture", "capture ", None, 7])
def test_a_name_is_exact_text_that_is_neither_blank_nor_padded(name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        contract(name=name)


@pytest.mark.promise("P05")
@pytest.mark.parametrize("version", ["", " ", "1 ", 1, None])
def test_a_version_is_exact_text_that_is_neither_blank_nor_padded(version: Any) -> None:
    with pytest.raises(ValueError, match="version"):
        contract(version=version)
    assert contract().version == "1"


@pytest.mark.promise("P05")
def test_a_second_contract_of_one_name_in_an_app_is_a_configuration_error() -> None:
    app = App("unused.db")
    app.register(contract())
    with pytest.raises(ConfigurationError, match="capture_payment"):
        app.register(contract())
    with pytest.raises(ConfigurationError, match="capture_payment"):
        app.effect(name="capture_payment")(lambda arguments: None)


@pytest.mark.promise("P06")
@pytest.mark.parametrize(
    "term", ["operation_id", "provider_idempotency_key", "provider_reference", "outcome_probe", "postcondition", "handler"]
)
def test_a_callback_that_cannot_be_called_is_a_type_error_when_the_contract_is_built(term: str) -> None:
    with pytest.raises(TypeError):
        contract(**{term: "not callable"})


@pytest.mark.promise("P06", "X1")
@pytest.mark.parametrize("policy", ["fail", "auto_retry", "", "QUARANTINE", None, True])
def test_what_may_follow_an_unknown_outcome_is_a_closed_list(policy: Any) -> None:
    with pytest.raises(ValueError, match="unknown_outcome"):
        contract(unknown_outcome=policy)
    assert contract().terms.unknown_outcome == "quarantine"
    assert contract(unknown_outcome="keep_unknown").terms.unknown_outcome == "keep_unknown"


@pytest.mark.promise("P04")
def test_a_key_guarantee_needs_a_key_function_and_then_a_key(bench: Bench) -> None:
    assert contract(provider_idempotency_key=key_of).terms.key_guaranteed is False
    with pytest.raises(ValueError, match="provider_idempotency_key"):
        contract(provider_idempotency_guaranteed=True)
    effect = bench.effect(lambda arguments: None, **guaranteed() | {"provider_idempotency_key": lambda arguments: None})
    with pytest.raises(ValueError, match="None"):
        effect.submit(ARGUMENTS)
    assert bench.submitted() == []


@pytest.mark.promise("S16")
def test_a_handler_takes_any_subset_of_its_parameters_by_name(bench: Bench) -> None:
    got: list[Any] = []

    def nothing() -> None:
        got.append(())

    def by_name(arguments: dict[str, Any], *, idempotency_key: str) -> None:
        got.append((arguments, idempotency_key))

    def backwards(idempotency_key: str, ctx: Any, arguments: dict[str, Any], mine: int = 7) -> None:
        got.append((arguments, ctx.idempotency_key, mine))

    for number, handler in enumerate((nothing, by_name, backwards)):
        effect = bench.effect(handler, name=f"effect {number}", provider_idempotency_key=key_of)
        assert bench.app.execute(effect, ARGUMENTS, operation_id=str(number)).status == "confirmed"
    assert got == [(), (ARGUMENTS, KEY), (ARGUMENTS, KEY, 7)]


@pytest.mark.promise("S16")
@pytest.mark.parametrize("declare", [EffectContract.handled_by, EffectContract.probe])
def test_a_parameter_that_is_never_given_is_refused_at_the_declaration(declare: Any) -> None:
    with pytest.raises(TypeError, match="payload"):
        declare(contract(), lambda payload: None)
    with pytest.raises(TypeError, match="payload"):
        declare(contract(), lambda arguments, *, payload: None)


@pytest.mark.promise("D33")
def test_a_probe_is_given_the_request_and_the_facts_and_no_way_to_act(bench: Bench) -> None:
    given: list[Any] = []

    async def probe(arguments: dict[str, Any], ctx: Any, idempotency_key: str) -> ProbeResult:
        given.append((arguments, idempotency_key, ctx.provider_reference, ctx.attempt, ctx.attempts))
        given.append({name for name in dir(ctx) if not name.startswith("_")})
        return ProbeResult.unknown()

    def handler() -> None:
        raise ConnectionResetError

    effect = bench.effect(handler, provider_idempotency_key=key_of, provider_reference=lambda a: a["invoice_id"])
    effect.probe(probe)
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    (arguments, key, reference, attempt, attempts), names = given
    assert (arguments, key, reference, attempt) == (ARGUMENTS, KEY, "INV-1042", 1)
    assert [one.number for one in attempts] == [1]
    assert attempts[0].dispatched == op.attempt_records[0]["dispatched_at"]
    assert names.isdisjoint({"sending", "report", "submit", "execute", "confirm"})
    assert op.attempts == 1
    assert len(seen(op, "probe_unknown")) == 1  # awaited: a coroutine that nobody awaits would be no answer, with a type error


@pytest.mark.promise("D32")
@pytest.mark.parametrize("term", ["timeout", "probe_timeout", "unknown_age_max"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), None, True, "30", timedelta(0)])
def test_a_duration_that_bounds_something_is_positive_and_finite(term: str, value: Any) -> None:
    with pytest.raises(ValueError, match=term):
        contract(**{term: value})


@pytest.mark.promise("D32", part="isolation and bounds as declared; a blocked store and the event loop are shown elsewhere")
def test_isolation_follows_the_kind_of_the_handler_and_seconds_are_as_good_as_a_timedelta() -> None:
    async def asynchronous() -> None:
        """Does nothing."""

    def synchronous() -> None:
        """Does nothing."""

    assert contract(handler=synchronous).isolation == "process"
    assert contract(handler=asynchronous).isolation == "async"
    assert contract(handler=asynchronous, isolation="process").isolation == "process"
    with pytest.raises(ValueError, match="coroutine"):
        contract(handler=synchronous, isolation="async")
    assert contract(timeout=2.5).terms == contract(timeout=timedelta(seconds=2.5)).terms
    assert (contract().terms.timeout_us, contract().terms.kill_grace_us) == (30_000_000, 3_000_000)


@pytest.mark.promise("S17")
@pytest.mark.parametrize("kind", ["lambda", "closure"])
def test_a_worker_refuses_a_process_handler_that_no_runner_can_import(kind: str) -> None:
    def closure() -> None:
        """Does nothing."""

    app = App("unused.db")
    app.effect(name="capture_payment", operation_id=operation_id_of)(closure if kind == "closure" else lambda: None)
    with pytest.raises(ConfigurationError, match="capture_payment") as refused:
        check_contracts(app)
    assert refused.value.exit_code == 78
    assert f"<{kind}>" in str(refused.value) or f".{kind})" in str(refused.value)
    assert "thread" in str(refused.value)


@pytest.mark.promise("S17")
def test_execute_of_a_process_handler_from_main_names_a_way_out_and_dispatches_nothing(tmp_path: Path) -> None:
    code = """
import sys
from settled import App, ConfigurationError
app = App(sys.argv[1])
app.create_database()
@app.effect(name="capture_payment", operation_id=lambda a: "one")
def capture_payment(arguments):
    print("called")
try:
    app.execute(capture_payment, {})
except ConfigurationError as error:
    print(error)
print(app.list())
"""
    said, listed = run(code, tmp_path / "settled.db").splitlines()
    assert "module" in said
    assert "isolation='thread'" in said
    assert listed == "[]"


@pytest.mark.promise("S18")
def test_confirm_on_is_one_of_two_words_and_a_probe_must_be_there_to_confirm() -> None:
    assert contract().terms.confirm_on == "return"
    for wrong in ("probes", "", None, True):
        with pytest.raises(ValueError, match="confirm_on"):
            contract(confirm_on=wrong)
    with pytest.raises(ValueError, match="probe"):
        _ = contract(confirm_on="probe").terms
    assert contract(confirm_on="probe", outcome_probe=lambda: ProbeResult.unknown()).terms.confirm_on == "probe"


@pytest.mark.promise("S18")
def test_a_request_for_a_contract_that_could_never_confirm_is_refused(bench: Bench) -> None:
    effect = bench.effect(lambda: None, confirm_on="probe")
    with pytest.raises(ValueError, match="probe"):
        effect.submit(ARGUMENTS)
    assert bench.submitted() == []


@pytest.mark.promise("D30")
def test_risk_is_a_label_that_changes_no_other_term() -> None:
    assert contract().terms.risk == "high"
    for risk in ("low", "medium", "high", "financial"):
        assert contract(risk=risk).terms == Terms(**{name: getattr(contract().terms, name) for name in Terms.__slots__} | {"risk": risk})
    for wrong in ("", "HIGH", "extreme", None, 3):
        with pytest.raises(ValueError, match="risk"):
            contract(risk=wrong)


@pytest.mark.promise("D14")
@pytest.mark.parametrize("retry", [3, object(), {"max_attempts": 3}, RetryPolicy])
def test_a_retry_policy_of_another_type_is_refused_at_construction(retry: Any) -> None:
    with pytest.raises(TypeError, match="RetryPolicy"):
        contract(retry=retry)


@pytest.mark.promise("S20")
@pytest.mark.parametrize("term", ["commit_horizon", "read_lag", "network_drain", "key_margin", "kill_grace"])
def test_a_margin_may_be_zero_and_never_negative(term: str) -> None:
    with pytest.raises(ValueError, match=term):
        contract(**{term: -0.001})
    contract(**{term: 0})


@pytest.mark.promise("S20")
@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"probe_attempts_max": 0}, "probe_attempts_max"),
        ({"rate_limit": 0}, "rate_limit"),
        ({"dispatch": "queue"}, "dispatch"),
        ({"isolation": "fiber"}, "isolation"),
        ({"provider_idempotency_window": timedelta(hours=1)}, "provider_idempotency_window"),
        ({"provider_idempotency_window": 0, **guaranteed()}, "provider_idempotency_window"),
        ({"provider_idempotency_window": -1, **guaranteed()}, "provider_idempotency_window"),
        ({"approval": "maybe"}, "approval"),
        ({"result_retention": "some"}, "result_retention"),
        ({"queue": " "}, "queue"),
    ],
)
def test_a_term_out_of_its_range_is_a_value_error_that_names_it(terms: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        contract(**terms)


@pytest.mark.promise("S20")
def test_a_contract_is_frozen_and_takes_no_unknown_keyword() -> None:
    made = contract()
    with pytest.raises(AttributeError, match="timeout"):
        made.timeout = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        made.name = "other"
    with pytest.raises(TypeError, match="announces_sending"):
        contract(announces_sending=1)
    with pytest.raises(TypeError):
        contract(retries=3)


@pytest.mark.promise("S82")
def test_the_terms_that_nobody_sets_are_the_declared_defaults() -> None:
    second = 1_000_000
    assert contract().terms == Terms(
        name="capture_payment",
        version="1",
        risk="high",
        queue="default",
        confirm_on="return",
        isolation="process",
        dispatch="direct",
        announces_sending=False,
        timeout_us=30 * second,
        kill_grace_us=3 * second,
        has_key=False,
        key_guaranteed=False,
        window_us=None,
        key_margin_us=300 * second,
        has_reference=False,
        has_probe=False,
        has_postcondition=False,
        max_attempts=3,
        not_sent_attempts_max=10,
        commit_horizon_us=0,
        read_lag_us=0,
        network_drain_us=120 * second,
        probe_timeout_us=10 * second,
        probe_attempts_max=12,
        unknown_age_max_us=86_400 * second,
        unknown_outcome="quarantine",
        concurrency=None,
        rate_limit=None,
        approval=False,
        result_retention="store",
        store_error_text=True,
    )


@pytest.mark.promise("D13", part="the policy's own values")
@pytest.mark.parametrize("attempts", [True, 2.0, "3", None])
def test_a_number_of_attempts_of_another_type_is_a_type_error(attempts: Any) -> None:
    with pytest.raises(TypeError, match="max_attempts"):
        RetryPolicy(max_attempts=attempts)


@pytest.mark.promise("D13", part="the policy's own values")
@pytest.mark.parametrize("attempts", [0, -1])
def test_a_number_of_attempts_below_one_is_a_value_error(attempts: int) -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=attempts)


@pytest.mark.promise("D10", "D12")
def test_a_policy_has_three_attempts_and_no_switch_to_repeat_an_unknown() -> None:
    assert RetryPolicy().max_attempts == 3
    with pytest.raises(TypeError):
        RetryPolicy(retry_on_unknown=True)  # type: ignore[call-arg]


@pytest.mark.promise("S133", part="the warning at the declaration")
def test_a_finite_window_in_a_thread_warns_and_names_the_isolation_that_helps() -> None:
    window = {**guaranteed(), "provider_idempotency_window": timedelta(hours=24)}
    with pytest.warns(UserWarning, match="process"):
        contract(isolation="thread", handler=lambda: None, **window)

    async def asynchronous() -> None:
        """Does nothing."""

    with pytest.warns(UserWarning, match="process"):
        contract(handler=asynchronous, **window)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contract(isolation="thread", handler=lambda: None, **guaranteed())
        contract(isolation="process", handler=asynchronous, **window)


@pytest.mark.promise("S81", part="the declared type itself")
@pytest.mark.parametrize("wrong", [5, "Capture", object()])
def test_an_arguments_type_that_can_check_nothing_is_refused_when_it_is_declared(wrong: Any) -> None:
    with pytest.raises(TypeError, match="arguments_type"):
        contract(arguments_type=wrong)


@pytest.mark.promise("S19", part="a contract apart from its handler; what a worker of another app leaves alone is shown elsewhere")
def test_importing_a_contract_does_not_import_its_handler(tmp_path: Path) -> None:
    code = """
import sys
from settled import App
import agreed
app = App(sys.argv[1])
app.create_database()
print(app.submit(agreed.capture_payment, {"invoice_id": "INV-1"}).status, "doing" in sys.modules)
from doing import app as working
print("doing" in sys.modules, working.contracts["capture_payment"].has_handler)
"""
    assert run(code, tmp_path / "settled.db", database=tmp_path / "settled.db").splitlines() == ["prepared False", "True True"]
