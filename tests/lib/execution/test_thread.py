"""The thread executor: one report each, honest about what still runs."""

import contextvars
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.clock import boot_us
from settled.core.errors import EffectRejected, NotSent
from settled.core.evidence import ProbeResult
from settled.core.words import FenceBasis
from settled.execution.job import End, Kind
from settled.execution.recorder import Phase, Recorder
from settled.execution.thread import ThreadExecutor
from tests.conftest import eventually
from tests.lib.execution.inprocess import Bench, Contract, bench, make_job


@pytest.fixture
def threads() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder.create(tmp_path / "recorder", 4, "0123456789abcdef0123456789abcdef", "0123456789ab")
    yield made
    made.close()


@pytest.mark.parametrize("value", [0, "", [], False, None, {"id": "pay-1"}])
def test_a_return_is_reported_with_its_canonical_text_whatever_its_truth_value(threads: Bench, value: Any) -> None:
    report = threads.run(lambda: value)
    assert (report.end, report.fence, report.late) == (End.RETURNED, FenceBasis.RETURNED, False)
    assert (report.output, report.postcondition) == (json.dumps(value, separators=(",", ":")), None)


@pytest.mark.promise("P09")
def test_handler_and_postcondition_each_get_their_own_copy_of_the_arguments(threads: Bench) -> None:
    seen: list[Any] = []

    def spoil(arguments: dict[str, Any], output: Any) -> bool:
        seen.append((dict(arguments), dict(output)))
        return True

    def handler(arguments: dict[str, Any]) -> Any:
        arguments.clear()
        arguments["x"] = 1
        return {"amount": 5}

    threads.run(Contract(handler, postcondition=spoil))
    assert seen == [({"amount": 5}, {"amount": 5})]


@pytest.mark.promise("P29")
def test_a_thread_that_outlasts_its_deadline_is_reported_at_once_without_a_fence_and_its_return_late(threads: Bench) -> None:
    release = threading.Event()
    started = boot_us()

    def handler(ctx: Any) -> str:
        ctx.report(provider_operation_id="pay-1")
        release.wait(20)
        return "done"

    job = threads.start(handler, timeout_seconds=0.5)
    report = threads.reports.first(job)
    assert (report.end, report.fence, report.late, report.provider_operation_id) == (End.TIMED_OUT, None, False, "pay-1")
    assert report.ended.boot_us - started < 2_000_000
    executor = threads.executors[job.isolation]
    assert (executor.running, executor.abandoned, executor.abandoned_of("effect")) == (0, 1, 1)
    release.set()
    late = threads.reports.late(job)
    assert (late.end, late.fence, late.late, late.output) == (End.RETURNED, FenceBasis.RETURNED, True, '"done"')
    assert eventually(lambda: executor.abandoned == 0)
    assert len(threads.reports.of(job)) == 2


def test_abandoned_threads_leave_their_slots_to_fresh_ones() -> None:
    release = threading.Event()
    with bench(slots=2) as threads:
        hung = [threads.start(lambda: release.wait(20), timeout_seconds=0.5) for _ in range(2)]
        waiting = threads.start(lambda: "next", timeout_seconds=10)
        assert threads.reports.first(waiting).end is End.RETURNED
        assert [threads.reports.first(job).end for job in hung] == [End.TIMED_OUT, End.TIMED_OUT]
        release.set()
        assert [threads.reports.late(job).end for job in hung] == [End.RETURNED, End.RETURNED]
        assert threads.run(lambda: 1).end is End.RETURNED


def test_a_job_that_finds_no_free_thread_before_its_deadline_is_never_entered() -> None:
    release, calls = threading.Event(), []
    with bench(slots=1) as threads:
        first = threads.start(lambda: release.wait(20))
        eventually(lambda: threads.executors[first.isolation].running)
        second = threads.start(lambda: calls.append(1), timeout_seconds=0.05)
        report = threads.reports.first(second)
        assert (report.end, report.fence) == (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED)
        release.set()
        threads.reports.first(first)
        assert threads.run(lambda: "after").end is End.RETURNED
        assert (calls, len(threads.reports.of(second)), threads.executors[first.isolation].abandoned) == ([], 1, 0)


def test_a_deadline_that_is_over_at_the_claim_or_a_past_entry_limit_is_never_entered(threads: Bench) -> None:
    calls: list[int] = []
    reports = [
        threads.run(lambda: calls.append(1), claimed_boot_us=boot_us() - 60_000_000),
        threads.run(lambda: calls.append(1), enter_by_boot_us=boot_us() - 1),
    ]
    assert [report.end for report in reports] == [End.NEVER_ENTERED] * 2
    assert calls == []


def test_a_person_s_stop_is_reported_at_once_and_the_code_late(threads: Bench) -> None:
    release, entered = threading.Event(), threading.Event()

    def handler() -> None:
        entered.set()
        release.wait(20)
        raise ValueError("too late")

    job = threads.start(handler)
    assert entered.wait(10)
    threads.executors[job.isolation].stop((Kind.HANDLER, job.row, 1))
    report = threads.reports.of(job)[0]
    assert (report.end, report.fence) == (End.STOPPED, None)
    release.set()
    late = threads.reports.late(job)
    assert (late.end, late.late, late.error_class) == (End.RAISED, True, "ValueError")


def test_a_shutdown_enters_nothing_that_waits_and_says_that_it_never_did() -> None:
    release, calls = threading.Event(), []
    with bench(slots=1) as threads:
        executor = threads.executors[make_job().isolation]
        contract = Contract(lambda ctx: (calls.append(ctx), release.wait(20)))
        running, *waiting = [threads.start(contract) for _ in range(4)]
        eventually(lambda: calls)
        executor.close(kill=True)
        assert threads.reports.first(running).end is End.STOPPED
        assert [(threads.reports.first(one).end, threads.reports.first(one).fence) for one in waiting] == [
            (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED)
        ] * 3
        release.set()
        threads.reports.late(running)
        assert len(calls) == 1 and [len(threads.reports.of(one)) for one in waiting] == [1, 1, 1]


def test_nothing_waits_for_a_thread_after_an_attempt_that_was_given_up() -> None:
    release = threading.Event()
    with bench(slots=1) as threads:
        threads.run(lambda: None)
        executor = threads.executors[make_job().isolation]
        assert isinstance(executor, ThreadExecutor) and executor.may_wait > 0
        assert threads.run(lambda: release.wait(20), timeout_seconds=1.0).end is End.TIMED_OUT
        assert executor.may_wait == 0
        release.set()


def test_a_stop_before_the_entry_stays_a_stop_with_a_fence_and_calls_nothing() -> None:
    release, calls = threading.Event(), []
    with bench(slots=1) as threads:
        first = threads.start(lambda: release.wait(20))
        eventually(lambda: threads.executors[first.isolation].running)
        second = threads.start(lambda: calls.append(1))
        threads.executors[second.isolation].stop(second.key)
        report = threads.reports.of(second)[0]
        assert (report.end, report.fence) == (End.STOPPED, FenceBasis.NEVER_ENTERED)
        release.set()
        threads.reports.first(first)
        assert (threads.run(lambda: "after").end, calls, len(threads.reports.of(second))) == (End.RETURNED, [], 1)


@pytest.mark.parametrize(
    "how", [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), StopIteration("x"), BaseExceptionGroup("g", [SystemExit(1)])]
)
def test_exits_are_errors_like_any_other_and_the_thread_lives(threads: Bench, how: BaseException) -> None:
    def handler() -> None:
        raise how

    report = threads.run(handler)
    assert (report.end, report.error_class, report.output) == (End.RAISED, type(how).__name__, None)
    assert threads.run(lambda: "alive").end is End.RETURNED


def test_an_error_with_nothing_left_behind_is_a_fence(threads: Bench) -> None:
    def handler() -> None:
        raise ConnectionResetError("reset")

    # Asked again where other tests of this machine start something in the same instant: that is a doubt, and a doubt is no fence.
    report = eventually(lambda: next((each for each in [threads.run(handler)] if each.fence), None))
    assert (report.end, report.fence, report.late) == (End.RAISED, FenceBasis.RAISED, False)


@pytest.mark.promise("S106")
@pytest.mark.parametrize("what", ["thread", "child", "daemon"])
def test_an_error_that_left_something_running_is_a_fence_only_when_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    release = threading.Event()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = "import sys, os; (sys.argv[2] == 'daemon' and os.fork() and os._exit(0)); open(sys.argv[1]).read()"

    def handler() -> None:
        if what == "thread":
            threading.Thread(target=release.wait, args=(20,), daemon=True).start()
        else:
            child = subprocess.Popen([sys.executable, "-c", script, str(gate), what], start_new_session=True)
            if what == "daemon":
                child.wait()  # from here on nothing but its mark ties the grandchild to us
        raise ValueError("left something")

    monkeypatch.setenv("SETTLED_INCARNATION", "feedc0de")
    with bench(incarnation="feedc0de") as threads:
        job = threads.start(handler)
        report = threads.reports.first(job)
        assert (report.end, report.fence, report.late) == (End.RAISED, None, False)
        release.set()
        if what != "thread":
            gate.open("w").close()
        late = threads.reports.late(job)
        assert (late.end, late.fence, late.late) == (End.RAISED, FenceBasis.RAISED, True)


def test_a_probe_s_answer_travels_whole(threads: Bench) -> None:
    def probe(ctx: Any) -> ProbeResult:
        assert not hasattr(ctx, "sending") and not hasattr(ctx, "report")
        assert [each.number for each in ctx.attempts] == [1, 2] and ctx.attempts[0].dispatched.year == 1970
        return ProbeResult.committed(reference=ctx.provider_reference, output={"amount": 5}, provider_operation_id="pay-1")

    contract = Contract(None, probe=probe, postcondition=lambda arguments, output: output["amount"] == arguments["amount"])
    report = threads.run(contract, kind=Kind.PROBE, attempts=((1, 5), (2, 6)))
    assert (report.end, report.output, report.postcondition) == (End.ANSWERED, '{"amount":5}', True)
    assert report.answer is not None and report.answer.provider_operation_id == "pay-1"


def test_a_probe_that_answers_with_something_else_raises_and_rejects_nothing(threads: Bench) -> None:
    def rejecting() -> None:
        raise EffectRejected("no")

    for probe in (lambda: True, lambda: None, rejecting):
        report = threads.run(Contract(None, probe=probe), kind=Kind.PROBE)
        assert (report.end, report.answer) == (End.RAISED, None)


def test_entry_is_contested_in_the_flight_recorder(recorder: Recorder) -> None:
    calls: list[int] = []
    with bench(recorder=recorder) as threads:
        recorder.claim(0, 7, 1)
        assert recorder.revoke(0, 7, 1) is Phase.CLAIMED
        report = threads.run(lambda: calls.append(1), slot=0, row=7)
        assert (report.end, calls) == (End.NEVER_ENTERED, [])
        recorder.claim(1, 8, 1)
        seen: list[Any] = []
        report = threads.run(lambda: seen.append(recorder.read(1)), slot=1, row=8)
        assert (report.end, seen[0].phase) == (End.RETURNED, Phase.ENTERED)
        state = recorder.read(1)
        assert state is not None and state.phase is Phase.RETURNED


def test_a_deadline_that_comes_while_the_entry_is_contested_calls_nothing(recorder: Recorder) -> None:
    calls: list[int] = []

    class SlowToEnter(Recorder):
        def enter(self, *contest: Any, **more: Any) -> bool:
            won = super().enter(*contest, **more)
            eventually(lambda: threads.reports.of(job))  # the deadline is reported between the contest and the call
            return won

    slow = SlowToEnter.open(recorder.path)
    with bench(recorder=slow) as threads:
        recorder.claim(0, 7, 1)
        job = make_job(slot=0, row=7, timeout_seconds=0.3)
        threads.contract = Contract(lambda: calls.append(1))
        threads.executors[job.isolation].start(job)
        assert threads.reports.first(job).end is End.TIMED_OUT
        late = threads.reports.late(job)
        assert (late.end, late.fence, late.late, calls) == (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED, True, [])
        assert eventually(lambda: threads.executors[job.isolation].abandoned == 0)
    slow.close()


def test_sending_refuses_an_attempt_that_was_revoked_or_timed_out_and_no_handler_swallows_that(recorder: Recorder) -> None:
    sent: list[str] = []

    def handler(ctx: Any) -> None:
        recorder.revoke(0, 7, 1, announces_sending=True)
        try:
            ctx.sending()
        except Exception:
            sent.append("swallowed")
        sent.append("sent")

    def slow(ctx: Any) -> None:
        eventually(lambda: ctx.time_remaining() == 0)
        ctx.sending()
        sent.append("late")

    with bench(recorder=recorder) as threads:
        recorder.claim(0, 7, 1)
        report = threads.run(handler, slot=0, row=7, announces_sending=True)
        assert (report.end, report.error_class, report.sending) == (End.NOT_SENT, "AttemptRevoked", False)
        job = threads.start(slow, timeout_seconds=0.5)
        assert eventually(lambda: any(each.end is End.NOT_SENT for each in threads.reports.of(job)))
    assert sent == []


@pytest.mark.promise("S02")
def test_not_sent_is_believed_before_sending_and_not_after_it(threads: Bench) -> None:
    def before() -> None:
        raise NotSent("dns")

    def after(ctx: Any) -> None:
        ctx.sending()
        raise NotSent("no")

    assert threads.run(before).end is End.NOT_SENT
    report = threads.run(after)
    assert (report.end, report.sending, report.error_class) == (End.RAISED, True, "NotSent")


def test_what_one_attempt_binds_to_a_context_variable_does_not_reach_the_next() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="clean")
    with bench(slots=1) as threads:
        threads.run(lambda: variable.set("dirty") and None)
        assert threads.run(lambda: variable.get()).output == '"clean"'


def test_an_unknown_contract_is_never_entered_and_the_thread_lives(threads: Bench) -> None:
    job = threads.start(lambda: 1, contract="effect")
    threads.reports.first(job)
    threads.contract = None
    unknown = job._replace(row=10**9)
    threads.executors[job.isolation].start(unknown)
    assert threads.reports.first(unknown).end is End.NEVER_ENTERED
    assert threads.run(lambda: 2).output == "2"


def test_a_handler_whose_forked_child_comes_back_leaves_one_worker() -> None:
    script = (
        "import os, sys, time\n"
        "sys.path[:0] = ['.', 'lib']\n"
        "from tests.lib.execution.inprocess import bench\n"
        "with bench() as threads:\n"
        "    child = []\n"
        "    def handler():\n"
        "        child.append(os.fork())\n"
        "        return child[0]\n"
        "    job = threads.start(handler)\n"
        "    threads.reports.first(job)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[3])
    assert done.stdout.split() == ["70"], done.stderr


def test_many_jobs_share_the_slots_and_each_gets_one_report(threads: Bench) -> None:
    jobs = [threads.start(lambda: 1) for _ in range(200)]
    assert {threads.reports.first(job).end for job in jobs} == {End.RETURNED}
    assert len(threads.reports.all) == 200
    assert sum(thread.name == "settled-thread" for thread in threading.enumerate()) <= 4 + 8
