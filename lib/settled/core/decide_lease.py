"""When an owner's lease is lost, and what that means for what it dispatched."""

from typing import NamedTuple

from settled.core.moment import SECOND_US
from settled.core.words import FenceBasis


class Looks(NamedTuple):
    """What an observer saw of another incarnation's heartbeat counter, by its own monotonic clock in microseconds."""

    counter: int
    since_us: int
    looks: int


def look(seen: Looks | None, counter: int, now_us: int) -> Looks:
    """Return the looks after one more; a counter that moved starts anew."""
    if seen is None or seen.counter != counter:
        return Looks(counter, now_us, 1)
    return seen._replace(looks=seen.looks + 1)


def lease_is_lost(seen: Looks, now_us: int, lease_seconds: float, looks_min: int) -> bool:
    """Return whether the counter stood still for a whole lease *and* enough looks: a suspend alone changes nothing."""
    return seen.looks >= looks_min and now_us - seen.since_us >= lease_seconds * SECOND_US


class Examined(NamedTuple):
    """What is proved about an owner: `gone` that its process ended, `fence` that nothing it started is left."""

    gone: bool
    fence: FenceBasis | None


def judge_owner(*, same_boot: bool, lock_is_free: bool | None, marked_processes: int | None, handed_cgroup_empty: bool | None) -> Examined:
    """Judge an owner by its lock, the processes that carry its mark, and a delegated cgroup where there is one.

    `lock_is_free` None: the lock file is missing or another one, which proves nothing. `marked_processes` None: some
    environment could not be read, which proves nothing either. `handed_cgroup_empty` None: no control group was handed to
    it, or that one is not there any more. That proves nothing and denies nothing (one that holds a process cannot be
    removed): the lock and the mark decide, as without one.

    Another boot ID alone shows no reboot: a container may show its processes another one than the system shows to a sandboxed
    service. What holds its lock, or carries its mark, has survived, so that there was none.
    """
    if not same_boot and lock_is_free is not False and not marked_processes:
        return Examined(True, FenceBasis.HOST_REBOOTED)
    if not lock_is_free:
        return Examined(False, None)
    nobody_left = marked_processes == 0 and handed_cgroup_empty is not False
    return Examined(True, FenceBasis.PROCESS_GONE if nobody_left else None)
