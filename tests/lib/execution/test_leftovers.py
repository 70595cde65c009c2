"""What a handler that raised left behind in this process: threads and processes, and never our own."""

import threading

from settled.clock import boot_us
from settled.execution.leftovers import OUR_THREADS, watch_for_leftovers


class Starting(threading.Thread):
    """A thread that the kernel shows already, and that has no ID in Python before it was asked for it twice."""

    def __init__(self, name: str) -> None:
        self.asked, self.is_shown, self.may_start, self.may_end = 0, threading.Event(), threading.Event(), threading.Event()
        super().__init__(name=name, target=self.may_end.wait)

    @property
    def native_id(self) -> int | None:
        self.asked += 1
        if self.asked >= 2:
            self.may_start.set()
        return super().native_id

    def _set_native_id(self) -> None:
        self.is_shown.set()
        assert self.may_start.wait(10)
        super()._set_native_id()  # type: ignore[misc]


def is_left_while_starting(name: str) -> bool:
    is_left = watch_for_leftovers(boot_us(), None)
    thread = Starting(name)
    starter = threading.Thread(target=thread.start, name=f"{OUR_THREADS}starter")
    starter.start()
    try:
        assert thread.is_shown.wait(10)
        return is_left()
    finally:
        thread.may_start.set()
        thread.may_end.set()
        starter.join()
        thread.join()


def test_a_thread_of_ours_that_is_just_starting_costs_nobody_his_fence() -> None:
    assert not is_left_while_starting(f"{OUR_THREADS}handler-1")


def test_a_foreign_thread_that_is_just_starting_is_left_behind() -> None:
    assert is_left_while_starting("of-the-handler")
