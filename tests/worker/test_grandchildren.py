"""Worker, supervisor and runner are dead, and a grandchild of the handler is not: the shop's own ledger counts what it does."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from settled import Status
from tests.conftest import eventually
from tests.lib.execution.groups import handed_group
from tests.lib.execution.outside import is_alive, kill
from tests.worker.services import LEASE, Place, Service, fresh

pytestmark = pytest.mark.timeout(300)  # many real starts; on a busy machine each takes its time

Leave = Callable[..., tuple[str, str, int]]
KINDS = pytest.mark.parametrize("kind", ["forked", "execd"])


@pytest.fixture
def handed() -> Iterator[Path]:
    with handed_group() as group:
        yield group


@pytest.fixture
def left(here: Place) -> Iterator[Leave]:
    """Submit a charge whose handler leaves a grandchild, and kill all but that one."""
    pids: list[int] = []

    def leave(kind: str, **options: Path) -> tuple[str, str, int]:
        reference = fresh()
        one = here.submit("charge_process", reference, hold=kind)
        worker: Service = here.worker(**options)
        pids.append(int(here.marked(f"grandchild-{reference}")))
        worker.kill_at_once()
        assert is_alive(pids[0])
        return one, reference, pids[0]

    yield leave
    for pid in pids:
        kill(pid)


def waits_for_a_fence(here: Place, one: str, reference: str) -> None:
    """See that an absence was observed twice and counted for nothing."""
    eventually(lambda: here.lines("probes")[reference] >= 2, seconds=30)
    op = here.becomes(one, Status.OUTCOME_UNKNOWN)
    assert (op.attempts, here.lines("calls")[reference]) == (1, 1)
    assert {event.data.get("why") for event in here.app.events(one) if event.type == "probe_unknown"} == {"no_fence"}
    assert "fence" not in here.app.events(one)[2].data and here.story(one)[2] == "lease_lost"


@pytest.mark.promise("S92")
@KINDS
def test_a_grandchild_that_commits_after_all_others_were_killed_is_waited_for(here: Place, left: Leave, kind: str) -> None:
    one, reference, _ = left(kind)
    here.worker(settings=LEASE)
    waits_for_a_fence(here, one, reference)
    here.mark(f"wake-{reference}")
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 1)
    assert here.lines("calls")[reference] == 1 and here.charges()[reference] == 1


@pytest.mark.promise("S92")
@KINDS
def test_a_grandchild_that_ends_without_an_effect_gives_the_fence_and_the_absence_counts(
    here: Place, left: Leave, kind: str
) -> None:
    one, reference, grandchild = left(kind)
    here.worker(settings=LEASE)
    waits_for_a_fence(here, one, reference)
    kill(grandchild)
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 2)
    assert [event.data["fence"] for event in here.app.events(one) if event.type == "fenced"] == ["process_gone"]
    assert here.lines("calls")[reference] == 2 and here.charges()[reference] == 1


@pytest.mark.promise("S93", part="a control group that is not empty gives no fence, though the lock is free and nothing carries the mark")
def test_in_a_handed_group_a_grandchild_without_session_and_environment_is_not_overlooked(
    here: Place, handed: Path, left: Leave
) -> None:
    one, reference, _ = left("hidden", into=handed)
    here.worker(settings=LEASE)
    waits_for_a_fence(here, one, reference)
    here.mark(f"wake-{reference}")
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 1)
    assert here.lines("calls")[reference] == 1 and here.charges()[reference] == 1


def test_in_a_handed_group_all_gone_is_a_fence_as_without_one(here: Place, handed: Path, left: Leave) -> None:
    one, _, grandchild = left("hidden", into=handed)
    kill(grandchild)
    here.worker(into=handed)
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 2)
    assert op.attempt_records[0]["fence"] == "process_gone"


def test_a_worker_in_a_handed_group_leaves_no_group_behind(here: Place, handed: Path) -> None:
    one = here.submit("charge_process", reference := fresh())
    worker = here.worker(into=handed)
    here.settled(one)
    groups = [folder.name for folder in handed.iterdir() if folder.is_dir()]
    assert len(groups) == 1 and groups[0].startswith("settled-") and list(handed.glob("settled-*/runner-*"))
    worker.stop()
    assert not list(handed.glob("settled-*")) and here.charges()[reference] == 1
