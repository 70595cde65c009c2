"""Keep the runners of one worker: start them, hear them, have them killed, and notice when the supervisor is of no use.

Promise: `is_buried` is only said of a runner after the supervisor has said that it and all that it started are dead and
reaped. Where that word is overdue or the supervisor is lost, the runner is given up and nobody claims that it is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from settled.clock import boot_us
from settled.core.limits import DEFAULTS
from settled.execution.endings import describe_status
from settled.execution.job import Job
from settled.execution.link import SupervisorLink
from settled.execution.runner_end import Ready, RunnerEnd, State, Told
from settled.execution.wire import Line, Message, WireError, line_bytes_max
from settled.logs import get_log

log = get_log("settled.execution")

START_GRACE_US: Final = 1_000_000
RETIRE_US: Final = 5_000_000  # for exit hooks of the app, after the last attempt of a runner
_DISMISS_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """Sizes and times of runners."""

    slots: int  # runners at a time
    handler_slots: int | None = None  # of these for handlers: further ones are started only while a probe waits; None: all
    arguments_bytes_max: int = DEFAULTS.arguments_bytes_max
    result_bytes_max: int = DEFAULTS.result_bytes_max
    runner_attempts_max: int = 10_000  # then it is replaced: each start costs as much as a thousand short attempts
    runner_bytes_max: int = 1_073_741_824  # the most memory it may have held; then it is replaced
    start_us: int = 60_000_000  # for importing the app
    patience_us: int = 10_000_000  # how long the supervisor's word may be overdue


class Watch(Protocol):
    """Calls when a line can be read, or written while something is pending."""

    def watch(self, line: Line, call: Callable[[], None]) -> None: ...
    def unwatch(self, line: Line) -> None: ...


class Listener(Protocol):
    """Who is told what becomes of the runners."""

    def on_told(self, runner: RunnerEnd, told: Told) -> None: ...
    def on_over(self, runner: RunnerEnd, how: str, *, is_buried: bool) -> None: ...
    def on_start_failed(self, why: str) -> None: ...


class Crew:
    """The runners and the supervisor that everything about them goes through."""

    def __init__(
        self,
        *,
        app_reference: str,
        limits: RunnerLimits,
        watch: Watch,
        listener: Listener,
        recorder: Path | None,
        lock_fd: int | None,
        cgroup: Path | None = None,
    ) -> None:
        self._app_reference, self._limits, self._watch, self._listener = app_reference, limits, watch, listener
        self._recorder, self._lock_fd, self._cgroup = recorder, lock_fd, cgroup
        self._runners: dict[int, RunnerEnd] = {}
        self._numbers = 0
        self._link: SupervisorLink | None = None
        self._doubted_until_boot_us: int | None = None  # a ping is out

    def all(self, *states: State) -> list[RunnerEnd]:
        """Return the runners, oldest first, in any of `states` if some are given."""
        runners = list(self._runners.values())  # at once: other threads ask too
        return [runner for runner in runners if not states or runner.state in states]

    def supervisor(self) -> SupervisorLink:
        """Return the supervisor, started if there is none. Raises OSError or ConfigurationError."""
        if self._link is None:
            longest = line_bytes_max(max(self._limits.arguments_bytes_max, self._limits.result_bytes_max))
            keep = () if self._lock_fd is None else (self._lock_fd,)
            self._link = SupervisorLink(
                self._app_reference,
                recorder=self._recorder,
                keep=keep,
                runner_line_bytes_max=longest,
                runner_memory_bytes_max=self._limits.runner_bytes_max,
                cgroup=self._cgroup,
            )
            self._watch.watch(self._link.line, self._on_supervisor)
        return self._link

    def spawn(self) -> None:
        """Start one runner. Raises OSError or ConfigurationError."""
        link, by_us = self.supervisor(), boot_us() + self._limits.start_us
        armed = by_us, by_us + START_GRACE_US
        line = link.spawn(self._numbers + 1, *armed)
        self._numbers += 1
        runner = RunnerEnd(self._numbers, line, armed[1] + self._limits.patience_us, armed)
        self._runners[runner.number] = runner
        self.watch(runner)
        self._watch.watch(link.line, self._on_supervisor)

    def watch(self, runner: RunnerEnd) -> None:
        """Listen to `runner`, and push what it has not read yet."""
        self._watch.watch(runner.line, lambda: self._on_runner(runner))

    def keep_time(self, runner: RunnerEnd, job: Job) -> bool:
        """Let the supervisor hold the deadline of `job`, the first in this runner's hands; False where it does. See `is_told`."""
        wanted = job.deadline_boot_us, job.kill_boot_us
        if self._link is None or runner.armed_boot_us == wanted:
            return False
        (self._link.arm if runner.armed_boot_us is None else self._link.move)(runner.number, *wanted)
        runner.armed_boot_us = wanted
        return True

    def is_told(self) -> bool:
        """Tell the supervisor what is to be told; whether all of it is in its hands now."""
        link = self._link
        if link is None:
            return False
        link.push()
        if link.line.at_end:
            self.lose_supervisor("its socket is closed")
        elif link.pending:
            self._watch.watch(link.line, self._on_supervisor)
        return not link.pending and self._link is link

    @property
    def has_supervisor(self) -> bool:
        return self._link is not None

    def push(self, runner: RunnerEnd) -> None:
        """Bring what is queued for `runner` into its hands, and expect the end of the first."""
        self._expect(runner)
        runner.line.push()
        if runner.line.pending:
            self.watch(runner)

    def go_on(self, runner: RunnerEnd) -> None:
        """It goes on with what it has in hand."""
        if runner.job is not None:
            self._expect(runner)
            if self.keep_time(runner, runner.job):
                self.is_told()

    def _expect(self, runner: RunnerEnd) -> None:
        if runner.job is not None:
            runner.give_up_boot_us = runner.job.kill_boot_us + self._limits.patience_us

    def rest(self, runner: RunnerEnd) -> None:
        """It has nothing in hand. The deadline that no longer stands is replaced by the next, or see `disarm_idle`."""
        runner.state, runner.give_up_boot_us = State.IDLE, None

    def disarm_idle(self) -> None:
        """Let the supervisor forget the deadlines of runners that were given nothing else: without a worker they are to leave at once."""
        for runner in self.all(State.IDLE):
            if self._link is not None and runner.armed_boot_us is not None:
                runner.armed_boot_us = None
                self._link.disarm(runner.number)

    def listen(self, runner: RunnerEnd) -> None:
        """Hear what `runner` has said until now."""
        self._listen(runner)

    def stop(self, runner: RunnerEnd, grace_us: int, kill_boot_us: int) -> None:
        """TERM now, KILL after the grace, at the latest at `kill_boot_us`."""
        now_us = boot_us()
        kill_us = min(now_us + grace_us, kill_boot_us)
        runner.is_stopping, runner.give_up_boot_us = True, kill_us + self._limits.patience_us
        if self._link is not None:
            runner.armed_boot_us = now_us, kill_us
            self._link.arm(runner.number, now_us, kill_us)
            self._link.push()

    def end(self, runner: RunnerEnd) -> None:
        """KILL now; `on_over` follows."""
        if runner.state is not State.STARTING:
            runner.state = State.ENDING
        runner.give_up_boot_us = boot_us() + self._limits.patience_us
        if self._link is not None:
            self._link.kill(runner.number)

    def retire(self, runner: RunnerEnd) -> None:
        """Let an idle runner leave by itself, so that the exit hooks of the app run."""
        kill_us = boot_us() + RETIRE_US
        runner.state, runner.give_up_boot_us = State.ENDING, kill_us + self._limits.patience_us
        if self._link is not None:
            self._link.arm(runner.number, kill_us, kill_us)
            self._link.push()
        self._watch.unwatch(runner.line)
        runner.line.close()

    # What is due.

    def look(self, now_us: int) -> None:
        """Give up what is overdue."""
        for runner in self.all():
            if runner.give_up_boot_us is not None and runner.give_up_boot_us <= now_us:
                self._give_up(runner)
        if self._doubted_until_boot_us is not None and self._doubted_until_boot_us <= now_us:
            self.lose_supervisor("it did not answer")

    def due_boot_us(self) -> list[int]:
        """Return the moments at which `look` has something to do."""
        due = [*(runner.give_up_boot_us for runner in self._runners.values()), self._doubted_until_boot_us]
        return [moment for moment in due if moment is not None]

    def dismiss(self, seconds: float, is_urgent: Callable[[], bool]) -> None:
        """Let runners and supervisor go; wait for their end, and kill what is left after `seconds`, or once it is urgent."""
        for runner in self.all():
            if self._link is not None and runner.state is not State.IDLE:
                self._link.kill(runner.number)
            self._drop(runner)
        link, self._link = self._link, None
        if link is not None:
            self._watch.unwatch(link.line)
            link.dismiss()
            until_us = boot_us() + int(seconds * 1_000_000)
            while not link.wait(_DISMISS_LOOK_SECONDS):
                if is_urgent() or boot_us() >= until_us:
                    log.error("execution.supervisor_killed", pid=link.pid, why="it did not end after its dismissal")
                    link.destroy()
                    return

    def forget_in_child(self) -> None:
        """Close every socket in a forked child."""
        for runner in self._runners.values():
            runner.line.close()
        if self._link is not None:
            self._link.forget_in_child()

    def lose_supervisor(self, why: str) -> None:
        """The supervisor is gone or of no use: end everything under it. Nobody reaped that for us, so nothing is buried."""
        link, self._link = self._link, None
        self._doubted_until_boot_us = None
        if link is None:
            return
        log.error("execution.supervisor_lost", pid=link.pid, why=why)
        self._watch.unwatch(link.line)
        link.destroy()
        for runner in self.all():
            self._listen(runner)
            self._drop(runner)
            self._listener.on_over(runner, "was ended together with its supervisor", is_buried=False)
        if not link.greeted:
            self._listener.on_start_failed(f"the supervisor of the runners could not be started: {why}. Nothing was sent. See its output.")

    def _give_up(self, runner: RunnerEnd) -> None:
        """The supervisor's word is overdue: find out whether it is still there."""
        self._drop(runner)
        if runner.state is State.STARTING:
            self._listener.on_start_failed("a runner did not become ready in time. Nothing was sent. See its output.")
        self._listener.on_over(runner, "did not end in time, or nobody saw it", is_buried=False)
        if self._link is not None and self._doubted_until_boot_us is None:
            self._doubted_until_boot_us = boot_us() + self._limits.patience_us
            self._link.ping()

    # What runners and supervisor say.

    def _on_runner(self, runner: RunnerEnd) -> None:
        if runner.number not in self._runners:
            return  # another call of the same turn has dropped it
        runner.line.push()
        self._listen(runner)
        if runner.line.at_end:
            self._watch.unwatch(runner.line)
        elif runner.number in self._runners:
            self.watch(runner)

    def _listen(self, runner: RunnerEnd) -> None:
        try:
            for word in runner.listen():
                if isinstance(word, Told):
                    self._listener.on_told(runner, word)
                elif runner.state is State.STARTING:
                    self._on_ready(runner, word)
        except WireError as error:
            log.warning("execution.runner_not_understood", runner=runner.number, error=str(error))
        if runner.line.at_end and runner.state is not State.ENDING:
            self.end(runner)

    def _on_ready(self, runner: RunnerEnd, word: Ready) -> None:
        if word.error is not None:
            runner.state, runner.give_up_boot_us = State.ENDING, boot_us() + self._limits.patience_us
            self._listener.on_start_failed(word.error)
            return
        runner.state, runner.give_up_boot_us, runner.armed_boot_us = State.IDLE, None, None
        if self._link is not None:
            self._link.disarm(runner.number)  # at once: that it was armed for its start does not show how long it will rest

    def _on_supervisor(self) -> None:
        link = self._link
        if link is None:
            return
        link.push()
        try:
            for event in link.events():
                self._on_event(event)
        except WireError as error:
            self.lose_supervisor(str(error))
            return
        if link.line.at_end:
            self.lose_supervisor("it ended")
        elif self._link is link:
            self._watch.watch(link.line, self._on_supervisor)

    def _on_event(self, event: Message) -> None:
        runner = self._runners.get(event.get("runner", -1))
        match event.get("event"):
            case "gone" if runner is not None:
                self._on_gone(runner, describe_status(event.get("status")))
            case "spawn_failed" if runner is not None:
                self._drop(runner)
                self._listener.on_start_failed(
                    f"a runner could not be started: {event.get('error')}. Nothing was sent. See: settled doctor"
                )
            case "pong":
                self._doubted_until_boot_us = None
            case _:
                pass  # of a runner that was given up

    def _on_gone(self, runner: RunnerEnd, how: str) -> None:
        self._listen(runner)  # what it said before it died counts
        self._drop(runner)
        if runner.state is State.STARTING:
            self._listener.on_start_failed(f"the runner {how} while it imported {self._app_reference!r}. Nothing was sent. See its output.")
        self._listener.on_over(runner, how, is_buried=True)

    def _drop(self, runner: RunnerEnd) -> None:
        self._runners.pop(runner.number, None)
        self._watch.unwatch(runner.line)
        runner.line.close()
