"""The effect contract: what is declared once, in code, about one kind of effect.

Promise: whatever can be wrong with a declaration is refused when it is made; a contract never changes afterwards, but
for the handler, probe and postcondition that its decorators add.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from settled.callbacks import HANDLER_PARAMETERS, POSTCONDITION_PARAMETERS, bind_by_name, is_async, takes_one
from settled.core.errors import ConfigurationError
from settled.core.limits import TERM_DEFAULTS as DEFAULT
from settled.core.terms import Terms
from settled.core.words import Isolation, Risk
from settled.declared import Seconds, count, flag, is_number, label, names, not_negative_us, one_of, positive_us, rate

Call = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a proved failure is tried again, and how long to wait. There is no switch to repeat an unknown outcome."""

    max_attempts: int = DEFAULT.max_attempts
    not_sent_attempts_max: int = DEFAULT.not_sent_attempts_max
    initial: Seconds = DEFAULT.retry_initial
    factor: float = DEFAULT.retry_factor
    cap: Seconds = DEFAULT.retry_cap
    jitter: float = DEFAULT.retry_jitter

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value that is not exactly what it must be."""
        for name in ("max_attempts", "not_sent_attempts_max"):
            count(getattr(self, name), name)
        for name in ("initial", "cap"):
            positive_us(getattr(self, name), name)
        if not is_number(self.factor) or self.factor < 1:
            raise ValueError(f"factor must be a number of at least 1, not {self.factor!r}")
        if not is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {self.jitter!r}")


class EffectContract:
    """One kind of effect. See docs/contracts.md for how to write one that tells the truth.

    Durations are seconds or `timedelta`. Raises TypeError or ValueError for what cannot be meant.
    """

    def __init__(
        self,
        *,
        name: str,
        operation_id: Call | None = None,
        version: str = DEFAULT.version,
        provider_idempotency_key: Call | None = None,
        provider_idempotency_guaranteed: bool = False,
        provider_idempotency_window: Seconds | None = None,
        key_margin: Seconds = DEFAULT.key_margin,
        provider_reference: Call | None = None,
        identity_fields: Iterable[str] | None = None,
        arguments_type: Any = None,
        risk: str = DEFAULT.risk,
        confirm_on: Literal["return", "probe"] = "return",
        timeout: Seconds = DEFAULT.timeout,
        kill_grace: Seconds = DEFAULT.kill_grace,
        isolation: str | None = None,
        dispatch: Literal["direct", "handoff"] = "direct",
        announces_sending: bool = False,
        retry: RetryPolicy | None = None,
        commit_horizon: Seconds = 0.0,
        read_lag: Seconds = 0.0,
        network_drain: Seconds = DEFAULT.network_drain,
        probe_timeout: Seconds = DEFAULT.probe_timeout,
        probe_attempts_max: int = DEFAULT.probe_attempts_max,
        unknown_age_max: Seconds = DEFAULT.unknown_age_max,
        unknown_outcome: Literal["quarantine", "keep_unknown"] = "quarantine",
        queue: str = DEFAULT.queue,
        concurrency: int | None = None,
        rate_limit: float | None = None,
        approval: Any = None,
        result_retention: Literal["store", "none"] = "store",
        store_error_text: bool = True,
        sensitive_fields: Iterable[str] = (),
        handler: Call | None = None,
        outcome_probe: Call | None = None,
        postcondition: Call | None = None,
    ) -> None:
        policy = RetryPolicy() if retry is None else retry
        if type(policy) is not RetryPolicy:
            raise TypeError(f"retry must be a RetryPolicy, not {type(retry).__name__}")
        _set(self, "name", label(name, "name"))
        _set(self, "operation_id_function", None if operation_id is None else takes_one(operation_id, "operation_id"))
        _set(self, "key_function", _optional_function(provider_idempotency_key, "provider_idempotency_key"))
        _set(self, "reference_function", _optional_function(provider_reference, "provider_reference"))
        _set(self, "identity_fields", names(identity_fields, "identity_fields"))
        _set(self, "arguments_type", _checked_type(arguments_type))
        _set(self, "approval", approval)
        _set(self, "_handler", None)
        _set(self, "_probe", None)
        _set(self, "_postcondition", None)
        _set(self, "_isolation_given", isolation is not None)
        guaranteed = flag(provider_idempotency_guaranteed, "provider_idempotency_guaranteed")
        if guaranteed and provider_idempotency_key is None:
            raise ValueError("provider_idempotency_guaranteed=True needs provider_idempotency_key: there is no key to deduplicate on")
        if provider_idempotency_window is not None and not guaranteed:
            raise ValueError("provider_idempotency_window needs provider_idempotency_guaranteed=True")
        _set(
            self,
            "_base",
            Terms(
                name=name,
                version=label(version, "version"),
                risk=one_of(risk, "risk", Risk),
                queue=label(queue, "queue"),
                confirm_on=one_of(confirm_on, "confirm_on", ("return", "probe")),
                isolation=one_of(isolation or Isolation.PROCESS, "isolation", Isolation),
                dispatch=one_of(dispatch, "dispatch", ("direct", "handoff")),
                announces_sending=flag(announces_sending, "announces_sending"),
                timeout_us=positive_us(timeout, "timeout"),
                kill_grace_us=not_negative_us(kill_grace, "kill_grace"),
                has_key=provider_idempotency_key is not None,
                key_guaranteed=guaranteed,
                window_us=None
                if provider_idempotency_window is None
                else positive_us(provider_idempotency_window, "provider_idempotency_window"),
                key_margin_us=not_negative_us(key_margin, "key_margin"),
                has_reference=provider_reference is not None,
                max_attempts=policy.max_attempts,
                not_sent_attempts_max=policy.not_sent_attempts_max,
                retry_initial_us=positive_us(policy.initial, "initial"),
                retry_factor=float(policy.factor),
                retry_cap_us=positive_us(policy.cap, "cap"),
                retry_jitter=float(policy.jitter),
                commit_horizon_us=not_negative_us(commit_horizon, "commit_horizon"),
                read_lag_us=not_negative_us(read_lag, "read_lag"),
                network_drain_us=not_negative_us(network_drain, "network_drain"),
                probe_timeout_us=positive_us(probe_timeout, "probe_timeout"),
                probe_attempts_max=count(probe_attempts_max, "probe_attempts_max"),
                unknown_age_max_us=positive_us(unknown_age_max, "unknown_age_max"),
                unknown_outcome=one_of(unknown_outcome, "unknown_outcome", ("quarantine", "keep_unknown")),
                concurrency=None if concurrency is None else count(concurrency, "concurrency"),
                rate_limit=None if rate_limit is None else rate(rate_limit),
                approval=approval is not None,
                result_retention=one_of(result_retention, "result_retention", ("store", "none")),
                store_error_text=flag(store_error_text, "store_error_text"),
                sensitive_fields=names(sensitive_fields, "sensitive_fields") or (),
            ),
        )
        _set(self, "_terms", None)
        if approval is not None and approval != "required" and not callable(approval):
            raise ValueError(f"approval must be 'required' or a predicate on the arguments, not {approval!r}")
        if outcome_probe is not None:
            self.probe(outcome_probe)
        if postcondition is not None:
            self.postcondition(postcondition)
        if handler is not None:
            self.handled_by(handler)
        elif provider_idempotency_window is not None:
            self._warn_of_window()

    name: str
    operation_id_function: Call | None
    key_function: Call | None
    reference_function: Call | None
    identity_fields: tuple[str, ...] | None
    arguments_type: Any
    approval: Any
    _base: Terms
    _terms: Terms | None
    _isolation_given: bool
    _handler: tuple[Call, tuple[str, ...], bool] | None
    _probe: tuple[Call, tuple[str, ...]] | None
    _postcondition: tuple[Call, tuple[str, ...]] | None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an effect contract is frozen: {name} cannot be set. Declare a new version instead")

    def __repr__(self) -> str:
        return f"EffectContract(name={self.name!r}, version={self._base.version!r})"

    # ------------------------------------------------------------------ the decorators

    def handled_by(self, function: F) -> F:
        """Make `function` the handler. It takes any of arguments, ctx, idempotency_key by name."""
        if self._handler is not None:
            raise ConfigurationError(f"contract {self.name!r} has a handler already")
        taken = bind_by_name(function, HANDLER_PARAMETERS, f"the handler of {self.name!r}")
        _set(self, "_handler", (function, taken, is_async(function)))
        _set(self, "_terms", None)
        self._check_isolation()
        return function

    def probe(self, function: F) -> F:
        """Make `function` the outcome probe: it reads, and only reads, whether the effect happened."""
        if self._probe is not None:
            raise ConfigurationError(f"contract {self.name!r} has a probe already")
        _set(self, "_probe", (function, bind_by_name(function, HANDLER_PARAMETERS, f"the probe of {self.name!r}")))
        _set(self, "_terms", None)
        return function

    def postcondition(self, function: F) -> F:
        """Make `function` the postcondition: what must hold of arguments and output for a result to count."""
        if self._postcondition is not None:
            raise ConfigurationError(f"contract {self.name!r} has a postcondition already")
        taken = bind_by_name(function, POSTCONDITION_PARAMETERS, f"the postcondition of {self.name!r}")
        _set(self, "_postcondition", (function, taken))
        _set(self, "_terms", None)
        return function

    # ------------------------------------------------------------------ what the shell asks

    @property
    def terms(self) -> Terms:
        """The data of this contract that decisions use. Raises ValueError for `confirm_on="probe"` without a probe."""
        if self._terms is None:
            if self._base.confirm_on == "probe" and self._probe is None:
                raise ValueError(f"contract {self.name!r} has confirm_on='probe' but no probe. Add one, or confirm on the return")
            values = {name: getattr(self._base, name) for name in Terms.__slots__}
            isolation = self._base.isolation
            if not self._isolation_given and self.is_async:
                isolation = Isolation.ASYNC
            values |= {
                "isolation": isolation,
                "has_probe": self._probe is not None,
                "has_postcondition": self._postcondition is not None,
            }
            _set(self, "_terms", Terms(**values))
        assert self._terms is not None
        return self._terms

    @property
    def version(self) -> str:
        """The version of the declaration."""
        return self._base.version

    @property
    def isolation(self) -> str:
        """Where the handler runs."""
        return self.terms.isolation

    @property
    def has_handler(self) -> bool:
        """Whether this process can do the effect."""
        return self._handler is not None

    @property
    def has_probe(self) -> bool:
        """Whether there is a probe."""
        return self._probe is not None

    @property
    def has_postcondition(self) -> bool:
        """Whether results are checked."""
        return self._postcondition is not None

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        return self._handler is not None and self._handler[2]

    @property
    def handler(self) -> Call | None:
        """The handler function itself."""
        return None if self._handler is None else self._handler[0]

    def call_handler(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        """Call the handler with the parameters it takes."""
        if self._handler is None:
            raise ConfigurationError(f"contract {self.name!r} has no handler in this process. Nothing was sent.")
        function, taken, _ = self._handler
        return function(**_pick(taken, arguments, ctx, idempotency_key))

    def call_probe(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        """Call the probe with the parameters it takes."""
        assert self._probe is not None
        function, taken = self._probe
        return function(**_pick(taken, arguments, ctx, idempotency_key))

    def call_postcondition(self, arguments: dict[str, Any], output: Any) -> Any:
        """Call the postcondition with the parameters it takes."""
        assert self._postcondition is not None
        function, taken = self._postcondition
        offered = {"arguments": arguments, "output": output}
        return function(**{name: offered[name] for name in taken})

    # ------------------------------------------------------------------ checks that need more than one value

    def _check_isolation(self) -> None:
        isolation = self._base.isolation if self._isolation_given or not self.is_async else Isolation.ASYNC
        if isolation == Isolation.ASYNC and not self.is_async:
            raise ValueError(f"contract {self.name!r} has isolation='async', but its handler is not a coroutine function")
        if isolation == Isolation.THREAD and self.is_async:
            raise ValueError(
                f"contract {self.name!r} has isolation='thread', but its handler is a coroutine function. Use 'async' or 'process'"
            )
        self._warn_of_window()

    def _warn_of_window(self) -> None:
        isolation = self._base.isolation
        if self._base.window_us is not None and self.is_async and not self._isolation_given:
            isolation = Isolation.ASYNC
        if self._base.window_us is not None and isolation != Isolation.PROCESS:
            warnings.warn(
                f"contract {self.name!r}: a finite idempotency window never justifies a key retry in {isolation} isolation, "
                f"because the code may send after it. Use isolation='process', or a probe",
                UserWarning,
                stacklevel=4,
            )


def _set(contract: EffectContract, name: str, value: object) -> None:
    object.__setattr__(contract, name, value)


def _pick(taken: tuple[str, ...], arguments: dict[str, Any], ctx: Any, key: str | None) -> dict[str, Any]:
    offered = {"arguments": arguments, "ctx": ctx, "idempotency_key": key}
    return {name: offered[name] for name in taken}


def _optional_function(value: Any, what: str) -> Call | None:
    return None if value is None else takes_one(value, what)


def _checked_type(arguments_type: Any) -> Any:
    if arguments_type is not None:
        from settled.arguments import arguments_schema  # pydantic is slow to import, and most contracts declare no type

        arguments_schema(arguments_type)
    return arguments_type
