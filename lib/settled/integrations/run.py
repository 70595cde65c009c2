"""What a host sees of a run: what was planned, how each call stands, and what the run waits for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from settled.core.errors import SettledError
from settled.integrations.policy import Pending


class RunState(StrEnum):
    """Where a run stands. These four are stored."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"


FINISHED = frozenset({RunState.COMPLETED, RunState.FAILED})


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that the planner asks for. `call_id` is the model's own, if it has one; it never becomes a key by itself."""

    tool: str
    arguments: Any
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The planner's end of the run. `output` is plain data."""

    output: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One planned call and how it stands. `effect_status` is None while it was not tried; `result` is what the planner is told of it."""

    number: int
    turn: int
    tool: str
    effect_status: str | None
    operation_id: str | None
    done: bool
    in_progress: bool = False
    arguments: Any = field(default=None, repr=False)
    result: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it was when it was read. `pending` are the calls that wait for the host's confirmation."""

    run_id: str
    state: RunState
    reason: str | None
    turn: int
    version: int
    task: Any = field(default=None, repr=False)
    output: Any = field(default=None, repr=False)
    steps: tuple[Step, ...] = ()
    pending: tuple[Pending, ...] = ()

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The operation IDs of effects that are not settled."""
        return tuple(step.operation_id for step in self.steps if not step.done and step.effect_status and step.operation_id)

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as plain data, without the task, arguments, results and output."""
        named = {name: getattr(self, name) for name in ("run_id", "reason", "turn", "version")}
        hidden = ("arguments", "result")
        steps = [{name: getattr(step, name) for name in Step.__slots__ if name not in hidden} for step in self.steps]
        return named | {"state": str(self.state), "steps": steps}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return a snapshot again. It tells which run is meant, and nothing in it is believed: resuming reads the store."""
        plain = dict(data)
        steps = tuple(Step(**step) for step in plain.pop("steps"))
        return cls(**plain | {"state": RunState(plain["state"]), "steps": steps})


class RunNotFoundError(SettledError):
    """No run has this ID."""

    exit_code = 3

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run has the ID {run_id!r}. Nothing was changed. Start it with Runtime.start")
        self.run_id = run_id


class RunConflictError(SettledError):
    """The run ID belongs to another task, or another process has moved the run meanwhile."""

    exit_code = 4

    def __init__(self, run_id: str, differs: Literal["task", "version"]) -> None:
        what = "another task has this ID. Use a new run ID." if differs == "task" else "another process drives it. Resume it later."
        super().__init__(f"run {run_id!r} was left as it is: {what}")
        self.run_id, self.differs = run_id, differs
