"""What the worker learns of attempts that run in killable processes."""

import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.clock import boot_us
from settled.core.words import FenceBasis
from settled.execution.job import End, Kind
from settled.execution.recorder import Phase, Recorder
from tests.conftest import eventually, is_free
from tests.lib.execution.inprocess import SECOND_US
from tests.lib.execution.outside import (
    APPS,
    LIBRARY,
    Outside,
    children_of,
    descriptors,
    is_alive,
    kill,
    outside,
    pid_in,
    zombies_of,
)

SHORT: dict[str, Any] = {"timeout_seconds": 1.0, "kill_grace_us": SECOND_US // 2}


@pytest.fixture(autouse=True, scope="module")
def _in_apps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(APPS)
        patch.setenv("PYTHONPATH", LIBRARY)
        yield


@pytest.fixture(scope="module")
def out(_in_apps: None) -> Iterator[Outside]:
    """One executor for all tests that need nothing special: what one test leaves behind, the next would meet."""
    with outside() as made:
        yield made


# What comes back.


def test_a_return_is_reported_and_the_runner_is_used_again(out: Outside) -> None:
    first, second = out.run("echo", {"given": [1, None, "ü\ud7ff"]}), out.run("echo")
    assert (first.end, first.fence) == (End.RETURNED, FenceBasis.RETURNED)
    assert first.output is not None and second.output is not None
    assert '"given":[1,null,"ü\ud7ff"]' in first.output
    assert first.output.rpartition("pid")[2] == second.output.rpartition("pid")[2]


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 1_048_574])
@pytest.mark.promise("S96")
def test_arguments_and_outputs_of_a_pipe_and_of_a_megabyte_pass(out: Outside, size: int) -> None:
    report = out.run("repeat", {"bytes": size, "given": '"' * ((size - 60) // 2)})
    assert (report.end, report.output) == (End.RETURNED, '"' + "x" * size + '"')


def test_an_output_over_the_limit_is_not_storable_and_the_attempt_is_over(out: Outside) -> None:
    report = out.run("repeat", {"bytes": 50_000_000})
    assert (report.end, report.fence, report.output) == (End.RESULT_NOT_STORABLE, FenceBasis.RETURNED, None)
    assert out.run("return_set").end is End.RESULT_NOT_STORABLE
    assert out.run("echo").end is End.RETURNED


def test_what_a_handler_prints_is_not_taken_for_protocol(out: Outside) -> None:
    assert out.run("chatter").output == '"said"'
    assert out.run("echo").end is End.RETURNED


def test_an_async_handler_runs_in_a_process_too(out: Outside) -> None:
    assert out.run("sleep_async").output == '"awaited"'


def test_a_probe_answer_comes_back_whole(out: Outside) -> None:
    report = out.run("probe_committed", kind=Kind.PROBE)
    assert report.end is End.ANSWERED and report.answer is not None
    assert (report.answer.reference, report.answer.provider_operation_id, report.output) == ("r1", "p1", '{"id":1}')
    assert dict(report.answer.evidence) == {"seen": "ü\u2028"}
    assert out.run("probe_odd", kind=Kind.PROBE).end is End.RAISED


@pytest.mark.parametrize("accept", [True, False])
def test_only_an_accepted_return_keeps_the_runner(out: Outside, accept: bool) -> None:
    report = out.run("checked", {"accept": accept})
    assert (report.end, report.postcondition, report.fence) == (End.RETURNED, accept, FenceBasis.RETURNED)
    again = out.run("checked", {"accept": True})
    assert (again.output == report.output) is accept


@pytest.mark.parametrize(
    "error",
    [
        "ValueError",
        "SystemExit",
        "KeyboardInterrupt",
        "GeneratorExit",
        "CancelledError",
        "TwoArguments",
        "Unpicklable",
        "BaseExceptionGroup",
    ],
)
def test_every_other_error_is_reported_as_raised_after_its_runner_is_dead(out: Outside, error: str) -> None:
    before = out.run("echo")
    report = out.run("raise_error", {"error": error})
    assert (report.end, report.error_class, report.fence) == (End.RAISED, error, FenceBasis.RAISED)
    assert report.error_text is not None and "\n" not in report.error_text
    assert out.run("echo").output != before.output


def test_an_error_without_words_is_reported_too(out: Outside) -> None:
    assert out.run("raise_error", {"error": "Speechless"}).error_text == "error message unavailable"


@pytest.mark.parametrize(("error", "end"), [("EffectRejected", End.REJECTED), ("NotSent", End.NOT_SENT)])
def test_a_rejection_or_a_proof_of_not_sent_keeps_the_runner(out: Outside, error: str, end: End) -> None:
    before = out.run("echo")
    assert out.run("raise_error", {"error": error}).end is end
    assert out.run("echo").output == before.output


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.promise("S106")
def test_raised_is_a_fence_only_after_everything_the_handler_started_is_dead(out: Outside, tmp_path: Path, clear: bool) -> None:
    path = tmp_path / "written"
    report = out.run("leave_and_raise", {"path": str(path), "clear": clear})
    assert (report.end, report.fence) == (End.RAISED, FenceBasis.RAISED)
    assert not is_alive(pid_in(tmp_path / "written.pid"))
    assert not is_alive(pid_in(tmp_path / "written.escaped.pid"))


# Ends by force.


def test_at_the_deadline_the_whole_group_is_killed_and_reaped_before_the_report(out: Outside, tmp_path: Path) -> None:
    job = out.start("hang", {"path": str(tmp_path / "late"), "entered": str(tmp_path / "entered")}, **SHORT)
    report = out.reports.first(job)
    assert (report.end, report.fence) == (End.TIMED_OUT, FenceBasis.PROCESS_KILLED)
    assert job.kill_boot_us <= report.ended.boot_us < job.kill_boot_us + SECOND_US
    for name in ("entered", "late.pid", "late.escaped.pid"):
        assert not is_alive(pid_in(tmp_path / name))
    assert out.run("echo").end is End.RETURNED


def test_a_result_that_comes_within_the_grace_counts_and_the_runner_is_not_used_again(out: Outside) -> None:
    before = out.run("echo")
    report = out.run("finish_on_term", **SHORT)
    assert (report.end, report.output) == (End.RETURNED, '"finished in the grace"')
    after = out.run("echo")
    assert after.output != before.output


def test_an_id_that_was_reported_survives_the_kill(out: Outside, tmp_path: Path) -> None:
    report = out.run("report_and_hang", {"entered": str(tmp_path / "entered")}, **SHORT)
    assert (report.end, report.provider_operation_id) == (End.TIMED_OUT, "ch_1")


@pytest.mark.parametrize(("contract", "text"), [("exit_hard", "status 0"), ("segfault", "SIGSEGV")])
def test_a_runner_that_dies_is_a_crash_never_a_success(out: Outside, contract: str, text: str) -> None:
    report = out.run(contract)
    assert (report.end, report.fence) == (End.CRASHED, FenceBasis.PROCESS_KILLED)
    assert report.error_text is not None and text in report.error_text


def test_a_stop_kills_and_is_reported_as_stopped(out: Outside, tmp_path: Path) -> None:
    job = out.start("hang", {"path": str(tmp_path / "late"), "entered": str(tmp_path / "entered")}, kill_grace_us=SECOND_US // 5)
    pid = pid_in(tmp_path / "entered")
    out.executor.stop(job.key)
    report = out.reports.first(job)
    assert (report.end, report.fence) == (End.STOPPED, FenceBasis.PROCESS_KILLED)
    assert not is_alive(pid) and not is_alive(pid_in(tmp_path / "late.pid"))


def test_a_stop_of_an_attempt_that_waits_is_a_stop_that_never_entered(tmp_path: Path) -> None:
    with outside(slots=1) as out:
        running = out.start("hang", {"entered": str(tmp_path / "entered")})
        pid_in(tmp_path / "entered")
        waiting, left = out.start("echo"), out.start("echo")
        out.executor.stop(waiting.key)
        assert out.reports.first(waiting).end is End.STOPPED
        assert out.reports.first(waiting).fence is FenceBasis.NEVER_ENTERED
        out.executor.close(kill=True)
        assert out.reports.first(left).end is End.NEVER_ENTERED, "nobody asked for a stop of this one: it is dispatched again"
        assert out.reports.first(running).end is End.STOPPED


def test_an_attempt_whose_time_is_over_before_a_runner_is_free_is_never_entered(tmp_path: Path) -> None:
    with outside(slots=1) as out:
        out.start("hang", {"entered": str(tmp_path / "entered")})
        pid_in(tmp_path / "entered")
        report = out.run("echo", timeout_seconds=0.2)
        assert (report.end, report.fence) == (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED)


def test_a_forked_child_that_comes_back_up_speaks_for_nobody(out: Outside) -> None:
    assert out.run("fork_and_come_back").output == '"I am the parent"'
    assert out.run("echo").end is End.RETURNED


@pytest.mark.parametrize("size", [10, 8_000_000])
def test_garbage_on_the_protocols_socket_ends_the_runner_and_not_the_worker(out: Outside, size: int) -> None:
    report = out.run("forge_line", {"bytes": size})
    assert report.end is End.CRASHED
    assert out.run("echo").end is End.RETURNED


@pytest.mark.promise("S95")
def test_a_thread_of_the_worker_sees_the_exit_status_of_its_own_commands_while_runners_die(out: Outside) -> None:
    stop = threading.Event()

    def die() -> None:
        while not stop.is_set():
            out.run("exit_hard", {"status": 1})

    dying = threading.Thread(target=die)
    dying.start()
    try:
        seen = [subprocess.run(["sh", "-c", "exit 7"], check=False).returncode for _ in range(30)]
    finally:
        stop.set()
        dying.join()
    assert seen == [7] * 30


def test_descriptors_stay_flat_and_no_zombie_is_left(out: Outside) -> None:
    def round_of_ends() -> None:
        for contract in ("exit_hard", "echo", "orphan_and_return", "return_set"):
            out.run(contract)

    round_of_ends()
    out.run("echo")
    eventually(lambda: not zombies_of(out.supervisor()))
    before, before_there = descriptors(), len(os.listdir(f"/proc/{out.supervisor()}/fd"))
    for _ in range(5):
        round_of_ends()
    out.run("echo")
    assert eventually(lambda: descriptors() <= before)
    assert eventually(lambda: len(os.listdir(f"/proc/{out.supervisor()}/fd")) <= before_there)
    assert eventually(lambda: not zombies_of(out.supervisor()) and not zombies_of(os.getpid()))


def test_close_leaves_no_process_and_no_descriptor() -> None:
    gc.collect()  # what earlier tests left behind is closed now, or its closing would hide a leak of this one
    before = descriptors()
    with outside() as out:
        out.run("echo")
        supervisor = out.supervisor()
        runners = children_of(supervisor)
        assert runners
    assert not is_alive(supervisor) and not any(map(is_alive, runners))
    assert descriptors() == before
    with pytest.raises(RuntimeError):
        out.start("echo")


def test_closing_without_kill_lets_what_runs_end(tmp_path: Path) -> None:
    with outside() as out:
        job = out.start("hang", {"entered": str(tmp_path / "entered"), "seconds": 0.5})
        pid_in(tmp_path / "entered")
        out.executor.close(kill=False)
        assert out.reports.first(job).end is End.RETURNED
        assert out.executor.join(20)


def test_runners_can_be_warmed_up_and_are_replaced_before_they_are_asked_for() -> None:
    with outside(slots=2) as out:
        out.executor.warm_up(2)
        assert eventually(lambda: out.executor.ready == 2, seconds=20)
        assert out.run("exit_hard", timeout_seconds=0.5).end is End.CRASHED  # in time, though a start takes about as long
        assert eventually(lambda: out.executor.ready == 2, seconds=20)


def test_an_app_that_ends_every_runner_does_not_keep_the_worker_starting_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_COUNT", str(tmp_path / "count"))
    with outside(app="suicidal:app") as out:
        out.executor.warm_up(1)
        eventually((tmp_path / "count").exists, seconds=20)
        eventually(lambda: not children_of(out.supervisor()))
        for _ in range(50):  # each turns the executor once, with every occasion to start another
            assert out.run("echo", timeout_seconds=0.0).end is End.NEVER_ENTERED
        assert (tmp_path / "count").read_text() == "run\n"


def test_a_runner_is_replaced_after_its_share_of_attempts() -> None:
    with outside(slots=1, runner_attempts_max=2) as out:
        pids = [out.run("echo").output]
        supervisor = out.supervisor()
        pids += [out.run("echo").output for _ in range(4)]
        assert out.supervisor() == supervisor
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


# The runner's surroundings.


@pytest.mark.promise("S96")
def test_a_runner_leads_its_own_group_and_finds_the_workers_directory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_INCARNATION", "inc-1")
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with outside() as out:
            report = out.run("environment")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    assert report.output is not None
    facts = json.loads(report.output)
    assert facts["is_leader"] and facts["signals"] and facts["stdin"] == "" and facts["incarnation"] == "inc-1"
    assert facts["first_on_path"] == facts["cwd"] == str(APPS)


@pytest.mark.promise("S96")
def test_a_script_without_a_main_guard_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_COUNT", str(tmp_path / "count"))
    with outside(app="unguarded:app", slots=1) as out:
        for _ in range(3):
            assert out.run("echo").end is End.RETURNED
    assert (tmp_path / "count").read_text() == "run\n"


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("unimportable:app", "ImportError: no such driver"),
        ("nowhere:app", "ModuleNotFoundError"),
        ("effects:nothing", "AttributeError"),
        ("effects:echo", "has no contracts"),
        ("exits:app", "ended by itself with status 3"),
    ],
)
def test_an_app_that_cannot_be_imported_is_a_configuration_error_and_nothing_is_entered(app: str, text: str) -> None:
    with outside(app=app) as out:
        report = out.run("echo")
        assert (report.end, report.fence, report.error_class) == (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED, "ConfigurationError")
        assert report.error_text is not None and text in report.error_text
        assert out.run("echo").end is End.NEVER_ENTERED


def test_an_unknown_contract_is_never_entered(out: Outside) -> None:
    report = out.run("no_such_contract")
    assert (report.end, report.error_class) == (End.NEVER_ENTERED, "ConfigurationError")


# The flight recorder.


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder.create(tmp_path / "recorder", 4, "inc-1", "boot-1")
    yield made
    made.close()


def test_entry_is_contested_in_the_runner(recorder: Recorder) -> None:
    with outside(recorder=recorder) as out:
        assert recorder.claim(0, 901, 1) and recorder.claim(1, 902, 1)
        assert recorder.revoke(1, 902, 1) is Phase.CLAIMED
        assert out.run("echo", row=901, slot=0).end is End.RETURNED
        assert out.run("echo", row=902, slot=1).end is End.NEVER_ENTERED
        seen = recorder.read(0)
        assert seen is not None and seen.phase is Phase.RETURNED


def test_without_the_slot_nobody_enters(recorder: Recorder) -> None:
    with outside(recorder=recorder) as out:
        assert out.run("echo", row=901, slot=2).end is End.NEVER_ENTERED


def test_an_attempt_past_its_entry_time_is_not_entered(recorder: Recorder) -> None:
    with outside(recorder=recorder) as out:
        recorder.claim(0, 901, 1)
        assert out.run("echo", row=901, slot=0, enter_by_boot_us=boot_us() - 1).end is End.NEVER_ENTERED


def test_a_runner_that_was_frozen_before_the_entry_is_revoked_after_the_kill(recorder: Recorder) -> None:
    with outside(recorder=recorder, slots=1) as out:
        out.run("echo")
        (runner,) = children_of(out.supervisor())
        os.kill(runner, signal.SIGSTOP)
        recorder.claim(0, 901, 1)
        report = out.run("echo", row=901, slot=0, **SHORT)
        assert (report.end, report.fence) == (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED)
        assert not is_alive(runner)


@pytest.mark.parametrize(("sending", "end"), [(False, End.NOT_SENT), (True, End.TIMED_OUT)])
def test_an_announcing_attempt_that_is_killed_before_sending_was_not_sent(
    recorder: Recorder, tmp_path: Path, sending: bool, end: End
) -> None:
    with outside(recorder=recorder) as out:
        out.run("echo")  # a runner is there: the time below is the attempt's alone
        recorder.claim(0, 901, 1)
        arguments = {"entered": str(tmp_path / "entered"), "sending": sending}
        report = out.run("report_and_hang", arguments, row=901, slot=0, announces_sending=True, **SHORT)
        assert (report.end, report.sending, report.fence) == (end, sending, FenceBasis.PROCESS_KILLED)


# Without a supervisor.


def test_a_handler_that_kills_the_supervisor_gets_no_fence_and_leaves_nothing(out: Outside, tmp_path: Path) -> None:
    report = out.run("kill_parent", {"path": str(tmp_path / "late")})
    assert (report.end, report.fence) == (End.CRASHED, None)
    assert eventually(lambda: not is_alive(pid_in(tmp_path / "late.pid")))
    assert out.run("echo").end is End.RETURNED


def test_a_supervisor_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    with outside(slots=1, patience_us=SECOND_US // 2) as out:
        out.run("echo")
        supervisor = out.supervisor()
        os.kill(supervisor, signal.SIGSTOP)  # the executor kills it, or the test fails
        job = out.start("hang", {"path": str(tmp_path / "late"), "entered": str(tmp_path / "entered")}, **SHORT)
        report = out.reports.first(job)
        assert (report.end, report.fence) == (End.TIMED_OUT, None)
        eventually(lambda: not is_alive(supervisor))
        for name in ("entered", "late.pid", "late.escaped.pid"):
            eventually(lambda name=name: not is_alive(pid_in(tmp_path / name)))  # type: ignore[misc]
        assert out.run("echo").end is End.RETURNED


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("are_runners_stopped", [False, True])
def test_a_supervisor_that_does_not_end_is_killed_before_the_worker_leaves(
    tmp_path: Path, is_busy: bool, are_runners_stopped: bool
) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with outside(lock_fd=lock) as out:
        out.run("echo")
        supervisor = out.supervisor()
        runners = children_of(supervisor)
        job = None
        if is_busy:
            job = out.start("hang", {"path": str(tmp_path / "late"), "entered": str(tmp_path / "entered")})
            pid_in(tmp_path / "entered"), pid_in(tmp_path / "late.pid"), pid_in(tmp_path / "late.escaped.pid")
            runners = children_of(supervisor)
        for pid in [supervisor, *(runners if are_runners_stopped else [])]:
            os.kill(pid, signal.SIGSTOP)
        out.executor.close(kill=True)
        assert out.executor.join(0.5)
        assert runners and not is_alive(supervisor)
        assert eventually(lambda: not any(map(is_alive, runners)))
        os.close(lock)
        assert eventually(lambda: is_free(tmp_path / "lock"))
        if job is not None:
            assert [(report.end, report.fence) for report in out.reports.of(job)] == [(End.STOPPED, None)]


def test_a_supervisor_that_cannot_start_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with outside() as out:
        report = out.run("echo")
        assert (report.end, report.error_class) == (End.NEVER_ENTERED, "ConfigurationError")


def test_a_forked_child_of_the_worker_does_not_keep_the_supervisor_waiting() -> None:
    with outside() as out:
        out.run("echo")
        supervisor = out.supervisor()
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            out.executor.close(kill=False)
            assert out.executor.join(20)
            assert not is_alive(supervisor)
        finally:
            kill(child)
            os.waitpid(child, 0)
