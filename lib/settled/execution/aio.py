"""Run async handlers on one event loop in a thread of its own.

Promise: a deadline cancels the attempt and is reported at once, even while another handler blocks the loop; a coroutine that
swallows its cancellation is abandoned, and what becomes of it is reported late. No handler can end the loop of the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from settled.execution.calling import Caller
from settled.execution.deadlines import Deadlines
from settled.execution.forked import leave_if_forked
from settled.execution.job import Arrived, Job, Kind, Resolve
from settled.execution.leftovers import OUR_THREADS, watch_for_leftovers
from settled.execution.loop import UnforkableLoop
from settled.execution.runs import Counting, EntryRecorder, Run, Runs
from settled.logs import get_log

_current: Final[contextvars.ContextVar[_Started | None]] = contextvars.ContextVar("settled_attempt", default=None)

log = get_log("settled.execution")


class _Started:
    """What the code of one attempt started on the loop: its tasks, and its calls in the loop's threads."""

    def __init__(self) -> None:
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.calls: weakref.WeakSet[Future[Any]] = weakref.WeakSet()

    def is_left(self, main: asyncio.Task[Any] | None) -> bool:
        return any(not task.done() for task in list(self.tasks) if task is not main) or any(not call.done() for call in list(self.calls))


class _Offload(ThreadPoolExecutor):
    """The loop's threads for asyncio.to_thread: they stay, so that only what runs in them tells whose they are."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(_call_in, os.getpid(), fn, args, kwargs)
        started = _current.get()
        if started is not None:
            started.calls.add(future)
        return future


class AsyncExecutor(Counting):
    """All async attempts of this process as tasks of one loop. Needs no slot of its own: the caller bounds how many run."""

    def __init__(
        self,
        *,
        resolve: Resolve,
        arrived: Arrived,
        caller: Caller,
        deadlines: Deadlines,
        recorder: EntryRecorder | None = None,
        incarnation: str | None = None,
    ) -> None:
        self._resolve, self._caller, self._incarnation = resolve, caller, incarnation
        self._runs = Runs(caller=caller, arrived=arrived, deadlines=deadlines, recorder=recorder, gave_up=self._cancel)
        self._tasks: dict[Run, tuple[asyncio.Task[None], _Started]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self, job: Job) -> None:
        if self._closed:
            raise RuntimeError(f"attempt {job.attempt} of operation {job.operation_id!r} was not started: the executor is closed")
        loop = self._loop or self._open_loop()
        run = self._runs.add(job)
        loop.call_soon_threadsafe(self._begin, loop, run)

    def stop(self, key: tuple[Kind, int, int]) -> None:
        """Cancel one attempt because a person said so, and report it at once: the code may swallow its cancellation."""
        self._runs.stop(key)

    def close(self, *, kill: bool) -> None:
        """Take no more work. With `kill`, cancel what runs and stop waiting for it."""
        self._closed = True
        if kill:
            self._runs.stop_all()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_when_idle)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = UnforkableLoop()
                loop.set_task_factory(_start_task)
                loop.set_default_executor(_Offload(thread_name_prefix=f"{OUR_THREADS}offload"))
                threading.Thread(target=self._turn, args=(loop,), name=f"{OUR_THREADS}loop", daemon=True).start()
                self._loop = loop
            return self._loop

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Turn the loop until its work is over. Said once that it had to be resumed: a handler may do it again and again."""
        said: set[str] = set()
        while True:
            error: BaseException | None = None
            try:
                loop.run_forever()
            except BaseException as ended:  # noqa: BLE001 - SystemExit of a task that a handler left behind must not end the others
                error = ended
            if error is None and self._is_over:
                return
            why = "the code of a handler called loop.stop()" if error is None else f"{type(error).__name__} came out of it"
            if why not in said:
                said.add(why)
                log.error("execution.loop_resumed", why=why, exc_info=error)

    def _begin(self, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        started = _Started()
        context = contextvars.Context()  # empty: what one attempt binds must not reach the next
        context.run(_current.set, started)
        self._tasks[run] = (loop.create_task(self._serve(run, started), context=context), started)

    async def _serve(self, run: Run, started: _Started) -> None:
        try:
            await self._serve_one(run, started)
        finally:
            self._tasks.pop(run, None)
            if self._closed:
                self._stop_when_idle()

    async def _serve_one(self, run: Run, started: _Started) -> None:
        job = run.job
        try:
            contract = self._resolve(job.contract)
        except Exception as error:  # noqa: BLE001 - an unknown contract is no reason to end the loop
            self._runs.refuse(run, f"{type(error).__name__}: {error}")
            return
        if not self._runs.enter(run):
            return
        report = await self._caller.call_async(job, contract, self._runs.context(run), run.marks)
        if report.fence is not None:
            self._runs.end(run, report)
            return
        main, outside = asyncio.current_task(), watch_for_leftovers(run.entered_boot_us, self._incarnation)
        self._runs.end(run, report, is_left=lambda: started.is_left(main) or outside())

    def _cancel(self, run: Run) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_here, run)

    def _cancel_here(self, run: Run) -> None:
        task, started = self._tasks.get(run, (None, None))
        if task is None or started is None:
            return
        for each in (task, *started.tasks):
            each.cancel()

    def _stop_when_idle(self) -> None:
        """Runs on the loop. Abandoned coroutines are not waited for: the loop's thread ends with the process."""
        if self._loop is not None and self._is_over:
            self._loop.stop()

    @property
    def _is_over(self) -> bool:
        return self._closed and not self._tasks and self._runs.running == 0


def _call_in(process: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `fn`; a child that it forks ends here, or it would wait for ever for calls that come to its parent."""
    try:
        return fn(*args, **kwargs)
    finally:
        leave_if_forked(process)


def _start_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    started = _current.get()
    if started is not None:
        started.tasks.add(task)
    return task
