"""What wakes the worker's loop."""

import select

from settled.core.words import Isolation
from settled.execution.job import End
from settled.testing import VirtualClock
from settled_worker.wake import Wake
from tests.lib.execution.inprocess import make_job
from tests.worker.harness import returned


def is_rung(wake: Wake) -> bool:
    return bool(select.select([wake.reader], [], [], 0)[0])


def test_a_report_rings_even_where_another_came_in_the_same_instant(clock: VirtualClock) -> None:
    report = returned(make_job(Isolation.THREAD), clock.now())
    assert report.end is End.RETURNED
    wake = Wake()
    wake.open()
    wake.reports.append(report)  # another thread that has come this far and has not rung yet
    wake.arrived(report)
    assert is_rung(wake)
    wake.drain()
    wake.arrived(report)
    assert not is_rung(wake)  # one ring is enough until the loop has looked
    assert len(wake.take()) == 3
    wake.arrived(report)
    assert is_rung(wake) and len(wake.take()) == 1
    wake.close()


def test_a_signal_rings_and_is_counted_and_a_full_pipe_is_no_error(clock: VirtualClock) -> None:
    wake = Wake()
    wake.open()
    for _ in range(70_000):
        wake.ring()
    wake.on_signal(15, None)
    assert wake.signals == 1 and is_rung(wake)
    wake.drain()
    assert not is_rung(wake)
    wake.close()
