"""Tell people: one loop for each channel, and one that watches over them, drives the ladders and fills the queues.

Promise: no sweep and no pump waits for a channel, and no channel for another. What was claimed and perhaps sent is sent again
with the same delivery ID when its owner is gone. A loop that breaks is started again.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from settled.app import App
from settled.config import Settings
from settled.config.escalation import EscalationSettings
from settled.core.backoff import backoff_us
from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.core.text import one_line, safe_str
from settled.logs import get_log
from settled.shell import Shell
from settled.steps.escalate import Escalated, Plan, climb, plan_of, route
from settled.steps.recover import Examiner
from settled.store import outbox, workers
from settled.store.outbox import Notification
from settled_worker.channels import Channel, DeliveryFailedError, Message, make_channels
from settled_worker.due import DueClock

log = get_log("settled.escalation")
_LOOK_ANYWAY_SECONDS: Final = 5.0  # a loop that nobody wakes looks by itself
_CLOSE_SECONDS: Final = 2.0
_FLUSH_SECONDS: Final = 60.0
_JITTER: Final = 0.1


@dataclass(kw_only=True)
class Escalation:
    """The telling of one incarnation, `me`. `tick` may also be called by a sweep; whatever it does is guarded in the store."""

    shell: Shell
    me: int
    plan: Plan
    channels: Mapping[str, Channel]
    redact: Callable[[str], str]
    poll_seconds: float | None = None
    seen_us: int = 0
    _loops: dict[str, "_Loop"] = field(default_factory=dict)
    _watch: threading.Thread | None = None
    _closed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Follow the clock from here on."""
        self._due = DueClock(self.shell.clock)
        self._examiner = Examiner(self.shell)
        self._unknown_told: set[str] = set()

    def start(self) -> None:
        """Start the loops; `settled-` in their names tells that they are no handler's."""
        with self._lock:
            if self._closed.is_set():
                return
            for name, channel in self.channels.items():
                loop = self._loops.get(name)
                if loop is None or not loop.is_alive():
                    self._loops[name] = self._begin(name, channel, broken=loop is not None)
            if self._watch is None or not self._watch.is_alive():
                self._watch = threading.Thread(target=self._run, name="settled-escalation", daemon=True)
                self._watch.start()

    def follow(self, settings: EscalationSettings) -> None:
        """Use other settings from now on. A loop that is sending ends when it is done; the new one of that channel waits its turn."""
        channels = make_channels(settings.channels, environ=os.environ, clock=self.shell.clock)
        with self._lock:
            self.plan, self.channels = plan_of(settings), channels
            for loop in self._loops.values():
                loop.end()
            self._loops = {}

    def close(self) -> None:
        """Send nothing more. What a hanging channel has in hand is sent again by whoever comes next."""
        self._closed.set()
        with self._lock:
            threads = [*self._loops.values(), *([self._watch] if self._watch else [])]
        for loop in list(self._loops.values()):
            loop.end()
        for thread in threads:
            thread.join(_CLOSE_SECONDS)

    def tick(self) -> Escalated:
        """Drive the ladders, fill the queues, take over from dead owners, and wake the channels that have something to send."""
        if self._watch is not None:
            self.start()  # whichever of the loops has broken, the watch among them
        due_us = self._due.wall_us(self.shell.clock.now())
        climbed = climb(self.shell, self.plan, due_us)
        routed = route(self.shell, self.plan, self.redact, due_us)
        self._take_over()
        self._wake_due(due_us)
        return Escalated(climbed.examined + routed.examined, climbed.moved + routed.moved)

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Try everything that is due once, for a process that does not stay; a channel that is down keeps what it has queued."""
        self.tick()
        due_us = self._due.wall_us(self.shell.clock.now())
        tries = [_Loop(self, name, channel, until_us=due_us) for name, channel in self.channels.items()]
        for one in tries:
            one.start()
        end_us = self.shell.clock.monotonic_us() + int(seconds * SECOND_US)
        for one in tries:
            one.join(max(0.0, (end_us - self.shell.clock.monotonic_us()) / SECOND_US))

    # ------------------------------------------------------------------ within

    def _run(self) -> None:
        poll = self.shell.limits.escalation_poll_seconds if self.poll_seconds is None else self.poll_seconds
        while not self._closed.wait(poll):
            try:
                self.tick()
                self.seen_us = self.shell.clock.monotonic_us()
            except LedgerUnavailableError as error:
                log.warning("escalation.store_unavailable", error=str(error))
            except Exception:  # the watch must outlive whatever it meets
                log.exception("escalation.failed")

    def _begin(self, name: str, channel: Channel, *, broken: bool) -> "_Loop":
        if broken:
            log.error("escalation.loop_started_again", channel=name)
            with self.shell.ledger.write() as transaction:
                outbox.release_channel(transaction, self.me, name)
        loop = _Loop(self, name, channel)
        loop.start()
        return loop

    def _take_over(self) -> None:
        """Give back what lost incarnations had in hand; whether it was sent, nobody knows, so that it is sent again."""
        with self.shell.ledger.read() as transaction:
            others = set(outbox.owners(transaction)) - {self.me}
            found = workers.find(transaction, others)
        lost = [owner for owner in others if owner not in found or self._is_lost(found[owner])]
        self._examiner.forget(others)
        if not lost:
            return
        with self.shell.ledger.write() as transaction:
            released = sum(outbox.release_all(transaction, owner) for owner in lost)
        log.warning("escalation.taken_over", notifications=released)

    def _is_lost(self, owner: workers.WorkerRow) -> bool:
        """One that is noted as ended has left or was proved gone; its files, and with them the proof, may be gone too."""
        return owner.ended_us is not None or self._examiner.examine(owner).lost

    def _wake_due(self, due_us: int) -> None:
        with self.shell.ledger.read() as transaction:
            due = set(outbox.channels_due(transaction, due_us))
        loops = self._loops
        for name in due & loops.keys():
            loops[name].wake()
        unknown = due - self.channels.keys()
        if unknown - self._unknown_told:
            log.error("escalation.channel_not_declared", channels=sorted(unknown), then="declare it again, or they are never delivered")
        self._unknown_told = unknown


def escalation_of(app: App, settings: Settings, me: int) -> Escalation:
    """Return the telling that the settings describe, for one incarnation."""
    channels = make_channels(settings.escalation.channels, environ=os.environ, clock=app.shell.clock)
    return Escalation(shell=app.shell, me=me, plan=plan_of(settings.escalation), channels=channels, redact=app.redact)


class _Loop(threading.Thread):
    """Sends what one channel has queued, one after the other. With `until_us` it tries once what was due then, and ends."""

    def __init__(self, whole: Escalation, name: str, channel: Channel, *, until_us: int | None = None) -> None:
        super().__init__(name=f"settled-channel-{name}", daemon=True)
        self._whole, self._channel_name, self._channel, self._until_us = whole, name, channel, until_us
        self._woken = threading.Event()
        self._over = False

    def end(self) -> None:
        """Send nothing more after what is in hand."""
        self._over = True
        self._woken.set()

    def wake(self) -> None:
        """Look at once."""
        self._woken.set()

    def run(self) -> None:
        """Work until everything closes."""
        if self._until_us is not None:
            self._drain()
            return
        while not self._over:
            self._woken.wait(_LOOK_ANYWAY_SECONDS)
            self._woken.clear()
            self._drain()

    def _drain(self) -> None:
        try:
            while not self._over and self._send_next():
                pass
        except LedgerUnavailableError as error:
            log.warning("escalation.store_unavailable", channel=self._channel_name, error=str(error))
        except Exception:
            log.exception("escalation.channel_failed", channel=self._channel_name)

    def _send_next(self) -> bool:
        whole, shell = self._whole, self._whole.shell
        due_us = whole._due.wall_us(shell.clock.now()) if self._until_us is None else self._until_us
        with shell.ledger.read() as transaction:
            if self._channel_name not in outbox.channels_due(transaction, due_us):
                return False
        with shell.ledger.write() as transaction:
            claimed = outbox.claim_next(transaction, self._channel_name, whole.me, due_us)
        if claimed is None:
            return False
        error = self._try(claimed)
        with shell.ledger.write() as transaction:
            now_us = whole._due.wall_us(shell.clock.now())
            if error is None:
                outbox.arrived(transaction, claimed.id, whole.me, now_us)
            else:
                outbox.failed(transaction, claimed.id, whole.me, now_us + self._wait_us(claimed.attempts), error)
        if error is None:
            log.info("notification.delivered", channel=self._channel_name, delivery_id=claimed.delivery_id, attempts=claimed.attempts)
        else:
            log.warning(
                "notification.failed", channel=self._channel_name, delivery_id=claimed.delivery_id, attempts=claimed.attempts, error=error
            )
        return True

    def _try(self, claimed: Notification) -> str | None:
        """Send once; return why it failed, fit to be stored and shown."""
        try:
            message = Message(delivery_id=claimed.delivery_id, created_us=claimed.created_us, body=claimed.body or "{}")
            self._channel.send(message)
            return None
        except DeliveryFailedError as error:
            said = safe_str(error)
        except Exception as error:  # a mistake of a channel must not stop it
            log.exception("escalation.channel_failed", channel=self._channel_name)
            said = f"{type(error).__name__}: {safe_str(error)}"
        return one_line(self._whole.redact(said), self._whole.shell.limits.error_text_max) or "it failed without a word"

    def _wait_us(self, attempts: int) -> int:
        limits = self._whole.shell.limits
        return backoff_us(
            max(1, attempts),
            initial_us=round(limits.delivery_retry_initial_seconds * SECOND_US),
            factor=limits.delivery_retry_factor,
            cap_us=round(limits.delivery_retry_cap_seconds * SECOND_US),
            jitter=_JITTER,
            draw=self._whole.shell.draw(),
        )
