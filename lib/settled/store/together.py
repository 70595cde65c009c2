"""Commit together what threads of this process want to write at the same time: one sync of the disk carries them all.

Promise: each piece of work is recorded whole or leaves nothing, whatever becomes of its neighbours, and whoever asked is told only
after the commit. Nobody is waited for: who comes while one commit is under way goes into the next, whose first leads it.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from settled.core.errors import LedgerUnavailableError
from settled.store.board import Pin, Pinned, answer_all
from settled.store.failures import translate
from settled.store.posting import Post, store_posts
from settled.store.transaction import Transaction

if TYPE_CHECKING:
    from settled.store.ledger import Ledger

T = TypeVar("T")
Item = TypeVar("Item")
PIECES_MAX: Final = 64
_ALONE_AFTER_A_FAILURE: Final = 64
_UNSET: Final = object()
_INTERRUPTED: Final = "the thread that was to commit this write was interrupted"


def _nothing() -> None:
    """Nothing is to be taken back, or it was before."""



class _Piece:
    """What one thread asks for. Its lock is let go when that is over, or when its thread is to lead."""

    __slots__ = ("called", "error", "item", "post", "refused", "result", "undone", "work")

    def __init__(
        self,
        work: Callable[..., Any],
        undone: Callable[[], None] = _nothing,
        post: Callable[[], Post | None] = _nothing,
        item: Any = _UNSET,
    ) -> None:
        self.work, self.item, self.undone, self.post = work, item, undone, post  # without an item: a work for this piece alone
        self.result: Any = _UNSET
        self.error: BaseException | None = None
        self.refused: Exception | None = None  # told once the others are committed: it may be about what one of them stored
        self.called: threading.Lock | None = None  # of one that waits

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.result is not _UNSET

    def take_back(self) -> None:
        """Call `undone`, once. A fault of it concerns nobody else, and whoever asked is told why nothing was recorded."""
        undone, self.undone = self.undone, _nothing
        with suppress(Exception):
            undone()


class Together:
    """The writing threads of one process on one ledger."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._guard = threading.Lock()
        self._waiting: deque[_Piece] = deque()
        self._leader: _Piece | None = None
        self._inside: set[int] = set()  # threads that write here
        self._alone = 0  # how many commits are still to take nothing along

    def write(
        self,
        work: Callable[[Transaction], T],
        undone: Callable[[], None] = _nothing,
        post: Callable[[], Post | None] = _nothing,
    ) -> T:
        """Run `work` in a transaction, perhaps on another thread; return what it gave once that is committed.

        Raises what `work` raised, and LedgerUnavailableError where the store cannot be written. `undone` is called, before any other
        work goes on, where nothing of this one is recorded. What `post` returns may be stored by another process instead of `work`,
        and what was stored is returned then.
        """
        result: T = self._ask(_Piece(work, undone, post))
        return result

    def write_alike(
        self, work: Callable[[Transaction, Sequence[Item]], Sequence[T]], item: Item, undone: Callable[[], None] = _nothing
    ) -> T:
        """As `write`, for a work that takes the items of all threads that ask for it at the same time, and gives a result for each.

        Where it raises, it is run again for each item alone; so it leaves nothing outside the store then.
        """
        result: T = self._ask(_Piece(work, undone, item=item))
        return result

    def _ask(self, piece: _Piece) -> Any:
        me = threading.get_ident()
        if me in self._inside:  # a signal handler or a finalizer, in the midst of a write of its own thread: it would wait for itself
            return self._write_alone(piece)
        try:
            self._inside.add(me)
            self._write(piece)
        finally:
            self._inside.discard(me)
            if not piece.is_over or self._leader is piece:
                self._leave(piece)
        if piece.error is not None:
            raise piece.error
        return piece.result

    def _write(self, piece: _Piece) -> None:
        with self._guard:
            self._waiting.append(piece)
            if self._leader is None:
                self._leader = piece
            else:
                piece.called = threading.Lock()
                piece.called.acquire()
        interrupt = None if piece.called is None else self._wait(piece, piece.called)
        if self._leader is piece:
            interrupt = self._lead() or interrupt
        if interrupt is not None:
            raise interrupt

    def _write_alone(self, piece: _Piece) -> Any:
        try:
            with self._ledger.write() as transaction:
                return _run(transaction, [piece])[0]
        except BaseException:
            piece.take_back()
            raise

    def _wait(self, piece: _Piece, called: threading.Lock) -> BaseException | None:
        """Wait to be over or to lead. An interrupt takes back what has not begun; what has is over soon, and told before the interrupt."""
        try:
            called.acquire()
            return None
        except BaseException as error:
            if self._leave(piece):
                raise
            while not piece.is_over:
                try:
                    called.acquire()
                except BaseException:  # noqa: BLE001 - the first interrupt is passed on, once it is known what was recorded
                    continue
            return error

    def _leave(self, piece: _Piece) -> bool:
        """Wait no more, and lead nobody: the first of those who wait leads then. Return whether the work had not begun."""
        with self._guard:
            has_waited = piece in self._waiting
            if has_waited:
                self._waiting.remove(piece)
            if self._leader is piece:
                self._hand_on()
        return has_waited

    def _lead(self) -> BaseException | None:
        """Commit all that wait, our own first, and let the first of those who came meanwhile go on. Return what interrupted us later."""
        pieces: list[_Piece] = []
        results: list[Any] = []
        failed: BaseException | None = None
        interrupt: BaseException | None = None
        try:
            self._gather(pieces)
            self._ledger.engine()
            if len(pieces) == 1 and pieces[0].post is not _nothing:
                result, interrupt = self._commit_or_post(pieces[0])
                results.append(result)
            else:
                results += self._commit(pieces)
        except BaseException as error:  # noqa: BLE001 - told to everyone whom it concerns
            failed = error
            self._ledger.board.give_up()
            self._ledger.turnstile.leave_whole()
        if not pieces:
            return failed
        while True:  # an interrupt of this thread must leave nobody waiting, and changes nothing of what was committed
            try:
                self._tell(pieces, results, failed)
                return interrupt
            except BaseException as error:  # noqa: BLE001
                interrupt = interrupt or error

    def _commit(self, pieces: Sequence[_Piece]) -> Sequence[Any]:
        """Write all of these, and what other processes wait to have written; return the results, once they are committed."""
        with self._ledger.write() as transaction:
            results = _run(transaction, pieces) if len(pieces) == 1 else self._run_apart(transaction, pieces)
            self.take_along(transaction)
        return results

    def _run_apart(self, transaction: Transaction, pieces: Sequence[_Piece]) -> list[Any]:
        """Run several pieces, those with the same work together."""
        groups: dict[object, list[_Piece]] = {}
        for piece in pieces:
            groups.setdefault(piece if piece.item is _UNSET else piece.work, []).append(piece)
        results = {piece: result for alike in groups.values() for piece, result in zip(alike, self._apart(transaction, alike), strict=True)}
        return [results[piece] for piece in pieces]

    def _commit_posted(self, piece: _Piece, post: Post, text: bytes) -> Any:
        """Write a lone piece whose post nobody took, by the same statements as what other processes wait to have written."""
        with self._ledger.write() as transaction:
            (answer,) = self.take_along(transaction, text)
            return post.accept(answer) if answer else _run(transaction, [piece])[0]

    def take_along(self, transaction: Transaction, *own: bytes) -> list[bytes]:
        """Store in a write of this ledger what was posted, our own and that of other processes; return the answers to our own.

        The others are answered once it is committed, while nobody else has the turn. Raises errors of the store alone. Where it is not
        committed, the next commits take nothing along: what others want stored, and has no room, must not keep ours from being stored.
        """
        posted: list[Pinned] = []
        if self._alone:
            self._alone -= 1
        elif self._ledger.turnstile.is_ours:
            posted = self._ledger.board.waiting()
        if not posted and not own:
            return []
        if posted:
            self._alone = _ALONE_AFTER_A_FAILURE
        answers = self._store_posts(transaction, [*own, *(one.text for one in posted)])
        if posted:
            transaction.after_commit.append(partial(self._answer, posted, answers[len(own) :]))
        return answers[: len(own)]

    def _answer(self, posted: Sequence[Pinned], answers: Sequence[bytes]) -> None:
        self._alone = 0
        answer_all(posted, answers)

    def _store_posts(self, transaction: Transaction, texts: Sequence[bytes]) -> list[bytes]:
        """Store what these texts ask for; return an answer for each, empty where it is left to its owner."""
        piece = _Piece(partial(store_posts, texts=texts))
        answers: list[bytes] = self._apart(transaction, [piece])[0]
        if piece.refused is None:
            return answers
        return [b""] if len(texts) == 1 else [self._store_posts(transaction, [one])[0] for one in texts]

    def _commit_or_post(self, piece: _Piece) -> tuple[Any, BaseException | None]:
        """Write a lone piece; where another process has the turn, post it, so that who has the turn may write it too."""
        turnstile, board = self._ledger.turnstile, self._ledger.board
        if turnstile.take_at_once():
            return self._commit([piece])[0], None
        post = piece.post()
        text = b"" if post is None else post.text()
        pin = board.pin(text) if text else None
        if post is None or pin is None:
            return self._commit([piece])[0], None
        answer, interrupt = self._wait_with(pin)
        if answer:
            turnstile.leave_whole()
            return post.accept(answer), interrupt
        if interrupt is not None:
            raise interrupt
        if answer is not None:  # it is left to us, and nobody has it in hand
            turnstile.leave_whole()
            return self._commit([piece])[0], None
        has_turn = turnstile.is_ours
        try:
            return self._commit_posted(piece, post, text), None
        except LedgerUnavailableError as error:
            if has_turn:
                raise
            raise _not_known("the process that was to commit this write with its own does not go on") from error
        finally:
            turnstile.leave_whole()

    def _wait_with(self, pin: Pin) -> tuple[bytes | None, BaseException | None]:
        """Wait until what is pinned is answered, or the turn is ours; return the answer, None where there is none.

        An interrupt is told once it is known what became of it: somebody may have it in hand.
        """
        interrupt: BaseException | None = None
        try:
            while True:
                try:
                    self._ledger.turnstile.enter(pin.is_answered, pin.nap)
                    break
                except Exception:
                    raise
                except BaseException as error:  # noqa: BLE001 - told above
                    interrupt = interrupt or error
        finally:
            answer = pin.take_down()
        return answer, interrupt

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
            elif failed is None and piece.refused is None:
                piece.result = results[number]
            else:
                piece.take_back()
                alike = number == 0 or isinstance(failed, Exception)
                piece.error = piece.refused if failed is None else failed if alike else _not_known(_INTERRUPTED)
            _call(piece)
        with self._guard:
            if self._waiting and self._waiting[0].is_over:  # an interrupt came while it was taken out
                self._waiting.popleft()
            if self._leader is pieces[0]:
                self._hand_on()

    def _hand_on(self) -> None:
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            _call(self._leader)

    def _apart(self, transaction: Transaction, alike: Sequence[_Piece]) -> Sequence[Any]:
        """Run pieces of one work so that they can be undone apart from others. An error of the store itself is raised: it is everyone's."""
        mark = transaction.sealing.mark()
        transaction.cursor.execute("SAVEPOINT piece")
        refused: Exception | None = None
        results: Sequence[Any] = [_UNSET] * len(alike)
        try:
            results = _run(transaction, alike)
        except Exception as error:
            if translate(error, self._ledger.path) is not None:
                raise
            refused = error
            transaction.undo()
            transaction.cursor.execute("ROLLBACK TO piece")
            transaction.sealing.back_to(mark)
            transaction.paused = None
        transaction.cursor.execute("RELEASE piece")
        if refused is not None and len(alike) > 1:
            return [self._apart(transaction, [piece])[0] for piece in alike]
        if refused is not None:
            alike[0].take_back()
            alike[0].refused = refused
        return results


def _run(transaction: Transaction, alike: Sequence[_Piece]) -> Sequence[Any]:
    work, item = alike[0].work, alike[0].item
    return [work(transaction)] if item is _UNSET else work(transaction, [item] if len(alike) == 1 else [piece.item for piece in alike])


def _call(piece: _Piece) -> None:
    if piece.called is not None:
        with suppress(RuntimeError):  # called already
            piece.called.release()


def _not_known(why: str) -> LedgerUnavailableError:
    return LedgerUnavailableError(f"{why}: it is not known whether it was stored. Look before you try again.")
