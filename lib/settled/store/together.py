"""Commit together what threads of this process want to write at the same time: one sync of the disk carries them all.

Promise: each piece of work is recorded whole or leaves nothing, whatever becomes of its neighbours, and whoever asked is told only
after the commit. Nobody is waited for: who comes while one commit is under way goes into the next, whose first leads it.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from settled.core.errors import LedgerUnavailableError
from settled.store.failures import translate
from settled.store.transaction import Transaction

if TYPE_CHECKING:
    from settled.store.ledger import Ledger

T = TypeVar("T")
PIECES_MAX: Final = 64
_UNSET: Final = object()


class _Piece:
    """One thread's work. Its lock is let go when the work is over, or when its thread is to lead."""

    __slots__ = ("called", "error", "leads", "result", "undone", "work")

    def __init__(self, work: Callable[[Transaction], Any], undone: Callable[[], None]) -> None:
        self.work, self.undone = work, undone
        self.result: Any = _UNSET
        self.error: BaseException | None = None
        self.leads = False
        self.called = threading.Lock()
        self.called.acquire()

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.result is not _UNSET


class Together:
    """The writing threads of one process on one ledger."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._guard = threading.Lock()
        self._waiting: deque[_Piece] = deque()
        self._is_led = False

    def write(self, work: Callable[[Transaction], T], undone: Callable[[], None]) -> T:
        """Run `work` in a transaction, perhaps on another thread; return what it gave once that is committed.

        Raises what `work` raised, and LedgerUnavailableError where the store cannot be written. `undone` is called, before any other
        work goes on, where nothing of this one is recorded.
        """
        piece = _Piece(work, undone)
        with self._guard:
            self._waiting.append(piece)
            piece.leads, self._is_led = not self._is_led, True
        interrupt = None if piece.leads else self._wait(piece)
        if piece.leads:
            self._lead()
        if interrupt is not None:
            raise interrupt
        if piece.error is not None:
            raise piece.error
        result: T = piece.result
        return result

    def _wait(self, piece: _Piece) -> BaseException | None:
        """Wait to be over or to lead. An interrupt takes back what has not begun; what has is over soon, and told before the interrupt."""
        try:
            piece.called.acquire()
            return None
        except BaseException as error:
            with self._guard:
                if piece in self._waiting:
                    self._waiting.remove(piece)
                    if piece.leads:
                        self._hand_on()
                    raise
            while not piece.is_over:
                try:
                    piece.called.acquire()
                except BaseException:  # noqa: BLE001 - the first interrupt is passed on, once it is known what was recorded
                    continue
            return error

    def _lead(self) -> None:
        """Commit all that wait, our own first, and let the first of those who came meanwhile go on."""
        pieces: list[_Piece] = []
        results: list[Any] = []
        failed: BaseException | None = None
        try:
            self._gather(pieces)
            with self._ledger.write() as transaction:
                alone = len(pieces) == 1
                results += [piece.work(transaction) if alone else self._apart(transaction, piece) for piece in pieces]
        except BaseException as error:  # noqa: BLE001 - told to everyone whom it concerns
            failed = error
        while True:  # an interrupt of this thread must leave nobody waiting
            try:
                self._tell(pieces, results, failed)
                return
            except BaseException as error:  # noqa: BLE001
                failed = failed or error

    def _gather(self, pieces: list[_Piece]) -> None:
        with self._guard:
            while self._waiting and len(pieces) < PIECES_MAX:
                pieces.append(self._waiting[0])
                self._waiting.popleft()

    def _tell(self, pieces: list[_Piece], results: list[Any], failed: BaseException | None) -> None:
        """Let everyone know; what was told before stays."""
        for number, piece in enumerate(pieces):
            if piece.is_over:
                pass
            elif failed is None:
                piece.result = results[number]
            else:
                piece.undone()
                piece.error = failed if number == 0 or isinstance(failed, Exception) else _not_known()
            _call(piece)
        with self._guard:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            self._waiting[0].leads = True
            _call(self._waiting[0])
        else:
            self._is_led = False

    def _apart(self, transaction: Transaction, piece: _Piece) -> Any:
        """Run one work so that it can be undone alone. An error of the store itself is raised: it is everyone's."""
        mark = transaction.sealing.mark()
        transaction.cursor.execute("SAVEPOINT piece")
        try:
            result = piece.work(transaction)
        except Exception as error:
            if translate(error, self._ledger.path) is not None:
                raise
            transaction.cursor.execute("ROLLBACK TO piece")
            transaction.sealing.back_to(mark)
            piece.error, result = error, _UNSET
            piece.undone()
        transaction.cursor.execute("RELEASE piece")
        return result


def _call(piece: _Piece) -> None:
    with suppress(RuntimeError):  # called already
        piece.called.release()


def _not_known() -> LedgerUnavailableError:
    return LedgerUnavailableError(
        "the thread that was to commit this write was interrupted: it is not known whether it was stored. Look before you try again."
    )
