"""Handles of transactions for asyncio: the coordinator's, and those of the handlers for tcms.

    async with client.transaction("d-tx") as tx:        # the coordinator's: a Transaction
        tx.tcm({"class": "p1", "x": "x1"})
        tx.sub("[class,eq,'p1'],[x,eq,'x1']")

    async def assign(tx, notification):                 # a handler's: a Part
        tx.usub("[class,eq,'p1'],[x,eq,'x1']")

Operations return at once. Awaiting what they return waits until the operation, and all that it has
triggered, is done everywhere. That is optional: the edge broker carries out a client's operations
one after the other.

The handles decide when to commit, abort and retry. Sending and waiting is left to
`padres_tx.client.asyncio.transaction_driver`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

from overlay.errors import OverlayError
from padres_tx.client import operations
from padres_tx.client.asyncio.futures import SharedFuture
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S
from padres_tx.client.operations import Op, Ops
from padres_tx.client.session import (
    FilterLike,
    Notification,
    PointLike,
    as_bytes,
    as_filter,
    as_point,
)
from padres_tx.client.transactions import ClientTransaction, Result
from padres_tx.client_messages import DEADLINE_LIMIT_S
from padres_tx.errors import CallTimeout, TransactionAborted, TransactionError, TransactionFinished

if TYPE_CHECKING:
    from padres_tx.client.asyncio.transaction_driver import TransactionDriver

#: How long a handler waits for an operation at most. It does not know the deadline, but no
#: transaction has a later one; after that the deciding broker must be unreachable.
PART_LIMIT_S = DEADLINE_LIMIT_S + CALL_TIMEOUT_S

#: When a commit returns: as soon as it is decided, or when every broker has applied it.
Wait: TypeAlias = Literal["decided", "applied"]

#: Called with a notification: a function, or a coroutine function.
Callback: TypeAlias = Callable[[Notification], Awaitable[None] | None]

#: The code of an abort after which another attempt may succeed.
CONFLICT = "conflict"

#: Pauses before another attempt: random, up to a limit that doubles with each, so that conflicting
#: transactions do not meet again. Short, because conflicts end within a round trip or two.
BACKOFF_S = 0.01
BACKOFF_LIMIT_S = 1.0

#: What `after` can name in a static transaction.
After: TypeAlias = "Iterable[Op | PendingOperation] | None"


class PendingOperation(SharedFuture[None]):
    """An operation that is being carried out: await it until it is done everywhere.

    Raises TransactionAborted, ConnectionLost, or why this operation failed.
    """

    __slots__ = ("_part", "op")

    def __init__(self, future: asyncio.Future[None], op: Op, part: Part | None) -> None:
        super().__init__(future)
        #: The operation itself, for `after` in a static transaction.
        self.op = op
        self._part = part

    def __repr__(self) -> str:
        return f"<{self.op}, {self._state()}>"

    def _state(self) -> str:
        if not self.done:
            return "pending"
        error = self._future.exception() if not self._future.cancelled() else None
        # In a static transaction nothing is done before its end: there is nothing to wait for.
        return "done" if error is None else f"{type(error).__name__}: {error}"

    def __await__(self) -> Generator[Any, None, None]:
        if self._part is None or self.done:
            return super().__await__()
        return self._part.wait(self._future).__await__()


class TransactionScope:
    """A client acting in a transaction: its coordinator, or a receiver of a tcm."""

    def __init__(self, driver: TransactionDriver, tx: ClientTransaction | None, frame: int) -> None:
        self._driver = driver
        self._tx = tx
        self.frame = frame

    @property
    def tx(self) -> ClientTransaction:
        """The transaction's state."""
        if self._tx is None:
            raise TransactionError("the transaction has not begun: enter it with `async with`")
        return self._tx

    @property
    def id(self) -> str:
        """The transaction's name, as in Table 2."""
        return self.tx.name

    @property
    def engine(self) -> str:
        return self.tx.engine

    @property
    def is_static(self) -> bool:
        """Whether the coordinator also says what other clients do (`ops` of a tcm, `after`)."""
        return self.tx.half.is_static

    @property
    def coordinator(self) -> str:
        """The client that began the transaction."""
        return self.tx.id[0]

    @property
    def result(self) -> Result | None:
        """The outcome, once it is known."""
        return self.tx.result

    @property
    def ended(self) -> SharedFuture[Result]:
        """The outcome, to be awaited. Raises ConnectionLost."""
        return SharedFuture(self._driver.futures(self.tx).decided)

    @property
    def drained(self) -> SharedFuture[None]:
        """Await it to know that no publication from before the commit will come any more.

        The callbacks of those that have come have returned then. (In a callback, which would wait
        for itself, it returns when the last of them has come.)

        It needs every broker: while one is away, this waits. Give it a time limit
        (`asyncio.timeout`) to go on without knowing.

        Raises TransactionAborted, ConnectionLost; TransactionError if the engine does not report
        it.
        """
        return self._driver.drained(self.tx)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._driver.name}: {self._tx or 'not begun'}>"

    # --- operations ---

    def tcm(
        self,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        ops: Ops | None = None,
        after: After = None,
        to: Iterable[str] | None = None,
    ) -> PendingOperation:
        """Make others act in the transaction: a publication that calls its receivers' handlers.

        Its receivers are all clients that are subscribed to it, except those whose last matching
        subscription is for events only. With `to`, a list of names, only these clients receive it;
        if one of them cannot, the transaction is aborted (code "unheard").

        In a static transaction `ops` says what the receivers do, by client; there are no handlers.
        """
        data = as_payload(payload, json)
        return self.do(operations.tcm(point, data, ops=ops, after=_operations(after), to=to))

    def pub(
        self,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: After = None,
    ) -> PendingOperation:
        """Publish; receivers get it when the transaction is committed, or never."""
        return self.do(operations.pub(point, as_payload(payload, json), after=_operations(after)))

    def adv(self, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Advertise."""
        return self.do(operations.adv(filter, after=_operations(after)))

    def uadv(self, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-advertise, a part or all."""
        return self.do(operations.uadv(filter, after=_operations(after)))

    def sub(
        self,
        filter: FilterLike,
        callback: Callback | None = None,
        *,
        events_only: bool = False,
        after: After = None,
    ) -> PendingOperation:
        """Subscribe, with a callback for what matches, as in `Client.subscribe`."""
        op = operations.sub(filter, events_only=events_only, after=_operations(after))
        return self.do(op, callback)

    def usub(self, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-subscribe, a part or all."""
        return self.do(operations.usub(filter, after=_operations(after)))

    def do(self, op: Op, callback: Callback | None = None) -> PendingOperation:
        """Carry out an operation that is given as data (`padres_tx.static`).

        Raises TransactionFinished, TransactionAborted, BadTransaction, NotAdvertised, NotHeld,
        TooManyRequests, FrameTooLarge, ConnectionLost.
        """
        return self._driver.operate(self, op, callback)

    # --- looks ---

    def holds(self, filter: FilterLike) -> bool:
        """Whether this client is subscribed to some part of the filter, in the transaction.

        The result is a read of the transaction: if others change it meanwhile, that is a conflict.
        So prefer it to what the program remembers.

        Raises FilterError, TransactionFinished, TransactionAborted, TooManyRequests,
        ConnectionLost.
        """
        return self._driver.holds(self, as_filter(filter))

    def advertises(self, point: PointLike) -> bool:
        """Whether this client may publish at that point, in the transaction; as `holds`."""
        return self._driver.advertises(self, as_point(point))

    async def abort(self, reason: str = "") -> Result:
        """Abort the transaction; returns the outcome, which can be a commit that was faster.

        Raises TransactionFinished, CallTimeout, ConnectionLost.
        """
        return await self._driver.abort(self.tx, reason)


class Part(TransactionScope):
    """A receiver's part in a transaction: the first argument of its handler for a tcm."""

    def __init__(self, driver: TransactionDriver, tx: ClientTransaction, frame: int) -> None:
        super().__init__(driver, tx, frame)
        #: How many operations the handler is waiting for.
        self.waiting = 0

    def is_open_at(self, driver: TransactionDriver) -> bool:
        """Whether it belongs to this client, and its handler has not returned."""
        return self._driver is driver and self.frame in self.tx.frames

    async def wait(self, future: asyncio.Future[None]) -> None:
        """Wait for an operation, and let the same transaction call this client meanwhile.

        Raises CallTimeout if the transaction has not ended when it must be over.
        """
        self.waiting += 1
        self._driver.handlers.start_next()
        try:
            async with asyncio.timeout(PART_LIMIT_S) as limit:
                await asyncio.shield(future)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallTimeout(
                f"timed out after {PART_LIMIT_S:g} s waiting for an operation of {self.id}"
            ) from None
        finally:
            self.waiting -= 1


class Transaction(TransactionScope):
    """A transaction of this client: enter it with `async with`, act, and leave it to commit.

    Leaving raises TransactionAborted if it could not be committed. A block that raises aborts the
    transaction, and its error propagates. It can also be ended inside, by `commit` or `abort`.
    """

    def __init__(self, driver: TransactionDriver, retry: TransactionRetry) -> None:
        super().__init__(driver, None, 0)
        self._retry = retry

    @property
    def begun(self) -> bool:
        return self._tx is not None

    async def __aenter__(self) -> Self:
        if self._tx is not None:
            raise TransactionFinished(f"{self._tx.name} was entered already; begin another one")
        retry = self._retry
        self._tx = await self._driver.begin(retry._engine, age=retry._age, **retry._terms)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is not None:
            await self._leave(error)
            return isinstance(error, TransactionAborted) and self._retry.goes_on(self.tx, error)
        if self.tx.end_requested:
            return False  # It was ended inside, and the block has the outcome.
        result = await self.commit()
        if result.committed:
            return False
        aborted = result.error()
        if self._retry.goes_on(self.tx, aborted):
            return True
        raise aborted

    async def commit(self, *, wait: Wait | None = None) -> Result:
        """Commit the transaction when all its operations are done; returns the outcome.

        Raises TransactionFinished, CallTimeout, ConnectionLost.
        """
        return await self._driver.commit(self.tx, wait or self._retry.wait)

    async def _leave(self, error: BaseException) -> None:
        if self.tx.end_requested or self.tx.result is not None:
            return
        reason = f"{type(error).__name__}: {error}"
        # Keep the block's own exception; the failure to abort is only a consequence.
        with contextlib.suppress(OverlayError):
            if isinstance(error, Exception):
                await self._driver.abort(self.tx, reason)
            else:  # A cancelled or interrupted block does not wait.
                self._driver.request_abort(self.tx, reason)


class TransactionRetry:
    """A transaction that has not begun: one attempt by `async with`, or several by `async for`.

    async with client.transaction("d-tx") as tx: ...

    async for tx in client.transaction("d-tx", retries=5):
        async with tx: ...

    The loop goes on after an attempt that was aborted by a conflict, while there are retries left,
    and ends with the first other outcome. Retries keep the age of the first attempt, so the
    transaction eventually wins against younger ones; after some losses its broker gives it
    precedence.
    """

    def __init__(
        self,
        driver: TransactionDriver,
        engine: str,
        *,
        retries: int = 0,
        wait: Wait = "decided",
        **terms: Any,
    ) -> None:
        if not isinstance(retries, int) or retries < 0:
            raise ValueError(f"invalid retries {retries!r}: expected a number from 0")
        self._driver = driver
        self._engine = engine
        self._retries = retries
        self._terms = terms
        self.wait = check_wait(wait)
        self._age = 0
        self._losses = 0
        self._again = True
        self._attempt: Transaction | None = None

    if not TYPE_CHECKING:  # A type checker finds such mistakes itself.

        def __getattr__(self, name: str) -> Any:
            raise not_entered(self, name)

    # --- one attempt ---

    async def __aenter__(self) -> Transaction:
        if self._retries:
            raise TypeError(
                "a block cannot be run twice: for retries use `async for tx in "
                "client.transaction(...)` and in it `async with tx` (in blocking code `for` and "
                "`with`), or client.transact(function)"
            )
        if self._attempt is not None:
            raise TransactionFinished("this transaction was entered already; begin another one")
        self._attempt = Transaction(self._driver, self)
        return await self._attempt.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._attempt is not None
        await self._attempt.__aexit__(kind, error, trace)

    # --- several ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Transaction:
        if self._attempt is not None and not self._attempt.begun:
            raise TransactionError("an attempt has not begun: enter it with `async with tx`")
        if not self._again:
            raise StopAsyncIteration
        if self._losses:
            limit_s = min(BACKOFF_LIMIT_S, BACKOFF_S * 2**self._losses)
            await asyncio.sleep(random.uniform(0, limit_s))
        self._again = False
        self._attempt = Transaction(self._driver, self)
        return self._attempt

    def goes_on(self, tx: ClientTransaction, error: TransactionAborted) -> bool:
        """Whether another attempt follows one that has ended like this."""
        self._age = tx.age or self._age
        lost = error.tx == tx.name and error.code == CONFLICT
        self._again = lost and self._losses < self._retries
        self._losses += lost
        return self._again


def not_entered(retry: object, name: str) -> AttributeError:
    """The error for using a transaction that was not entered."""
    text = f"{type(retry).__name__!r} object has no attribute {name!r}"
    if hasattr(Transaction, name):
        text = f"the transaction has not begun: enter it, as in `with ... as tx`, and use tx.{name}"
    return AttributeError(text)


def as_payload(payload: bytes, json: Any) -> bytes:
    """The payload, from bytes or JSON data.

    Raises TypeError if both are given, or if the data cannot be encoded.
    """
    if json is msgspec.UNSET:
        return as_bytes(payload)
    if payload:
        raise TypeError("a publication has one payload: bytes, or json")
    return msgspec.json.encode(json)


def check_wait(wait: Wait) -> Wait:
    if wait not in ("decided", "applied"):
        raise ValueError(f"invalid wait {wait!r}: expected 'decided' or 'applied'")
    return wait


def _operations(after: After) -> list[Op] | None:
    if after is None:
        return None
    return [one.op if isinstance(one, PendingOperation) else one for one in after]
