"""Handles of transactions for blocking code: those of `padres_tx.client.asyncio.handles`.

    with client.transaction("d-tx") as tx:
        tx.tcm({"class": "p1", "x": "x1"})
        tx.pub({"class": "p1", "x": "x1", "n": 1})

    for tx in client.transaction("d-tx", retries=5):
        with tx: ...

Operations return at once; `wait` on what they return waits until they are done everywhere.

When a transaction ends while its handler runs, calls that the handler waits for raise; a thread
cannot be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

import msgspec

from padres_tx.client.asyncio import handles
from padres_tx.client.asyncio.futures import SharedFuture
from padres_tx.client.asyncio.handles import Wait
from padres_tx.client.blocking.threads import ClientThreads
from padres_tx.client.operations import Op, Ops
from padres_tx.client.session import FilterLike, Notification, PointLike
from padres_tx.client.transactions import Result

T = TypeVar("T")
S = TypeVar("S", bound=handles.TransactionScope)


class BlockingOperation:
    """An operation that is being carried out."""

    def __init__(self, threads: ClientThreads, pending: handles.PendingOperation) -> None:
        self._threads = threads
        self._pending = pending

    def __repr__(self) -> str:
        return repr(self._pending)

    @property
    def op(self) -> Op:
        """The operation itself, for `after` in a static transaction."""
        return self._pending.op

    @property
    def done(self) -> bool:
        return self._pending.done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is done everywhere; the transaction's deadline ends that.

        Raises TransactionAborted, ConnectionLost, why this operation failed; TimeoutError.
        """
        self._threads.run(_await(self._pending, timeout_s))


#: What `after` can name.
After: TypeAlias = Iterable[Op | BlockingOperation] | None


class BlockingScope(Generic[S]):
    """A client acting in a transaction: the asyncio `TransactionScope`, without `await`."""

    def __init__(self, threads: ClientThreads, scope: S) -> None:
        self._threads = threads
        self._scope = scope

    @property
    def id(self) -> str:
        """The transaction's name, as in Table 2."""
        return self._scope.id

    @property
    def engine(self) -> str:
        return self._scope.engine

    @property
    def is_static(self) -> bool:
        """Whether the coordinator also says what other clients do (`ops` of a tcm, `after`)."""
        return self._scope.is_static

    @property
    def coordinator(self) -> str:
        """The client that began the transaction."""
        return self._scope.coordinator

    @property
    def result(self) -> Result | None:
        """The outcome, once it is known."""
        return self._scope.result

    def __repr__(self) -> str:
        return repr(self._scope)

    def wait_ended(self, timeout_s: float | None = None) -> Result:
        """Wait for the outcome. Raises ConnectionLost, TimeoutError."""
        return self._threads.run(_await_lazily(lambda: self._scope.ended, timeout_s))

    def wait_drained(self, timeout_s: float | None = None) -> None:
        """Wait until no publication from before the commit will come any more.

        It needs every broker: while one is away, this waits, unless there is a time-out.

        Raises TransactionAborted, ConnectionLost, TimeoutError; TransactionError if the engine
        does not report it.
        """
        self._threads.run(_await_lazily(lambda: self._scope.drained, timeout_s))

    def tcm(
        self,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        ops: Ops | None = None,
        after: After = None,
        to: Iterable[str] | None = None,
    ) -> BlockingOperation:
        """Make others act in the transaction; in a static one, `ops` says what they do."""
        after = operations(after)
        return self._do(self._scope.tcm, point, payload, json=json, ops=ops, after=after, to=to)

    def pub(
        self,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: After = None,
    ) -> BlockingOperation:
        """Publish; receivers get it when the transaction is committed, or never."""
        return self._do(self._scope.pub, point, payload, json=json, after=operations(after))

    def adv(self, filter: FilterLike, *, after: After = None) -> BlockingOperation:
        """Advertise."""
        return self._do(self._scope.adv, filter, after=operations(after))

    def uadv(self, filter: FilterLike, *, after: After = None) -> BlockingOperation:
        """Un-advertise, a part or all."""
        return self._do(self._scope.uadv, filter, after=operations(after))

    def sub(
        self,
        filter: FilterLike,
        callback: Callable[[Notification], None] | None = None,
        *,
        events_only: bool = False,
        after: After = None,
    ) -> BlockingOperation:
        """Subscribe, with a callback for what matches, as in `Client.subscribe`."""
        relay, after = self._threads.relay(callback), operations(after)
        return self._do(self._scope.sub, filter, relay, events_only=events_only, after=after)

    def usub(self, filter: FilterLike, *, after: After = None) -> BlockingOperation:
        """Un-subscribe, a part or all."""
        return self._do(self._scope.usub, filter, after=operations(after))

    def do(
        self, op: Op, callback: Callable[[Notification], None] | None = None
    ) -> BlockingOperation:
        """Carry out an operation that is given as data (`padres_tx.static`)."""
        return self._do(self._scope.do, op, self._threads.relay(callback))

    def holds(self, filter: FilterLike) -> bool:
        """Whether this client is subscribed to some part of the filter, in the transaction."""
        return self._threads.call(self._scope.holds, filter)

    def advertises(self, point: PointLike) -> bool:
        """Whether this client may publish at that point, in the transaction."""
        return self._threads.call(self._scope.advertises, point)

    def abort(self, reason: str = "") -> Result:
        """Abort the transaction; returns the outcome."""
        return self._threads.run(self._scope.abort(reason))

    def _do(
        self, call: Callable[..., handles.PendingOperation], *args: Any, **more: Any
    ) -> BlockingOperation:
        return BlockingOperation(self._threads, self._threads.call(call, *args, **more))


#: A receiver's part in a transaction: the first argument of its handler for a tcm.
Part: TypeAlias = BlockingScope[handles.Part]

#: Called with a part and the tcm, on the client's handler thread.
Handler: TypeAlias = Callable[[Part, Notification], None]


class BlockingTransaction(BlockingScope[handles.Transaction]):
    """A transaction of this client: enter it with `with`, act, and leave it to commit."""

    def __enter__(self) -> Self:
        self._threads.run(self._scope.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._threads.run(self._scope.__aexit__(kind, error, trace))

    def commit(self, *, wait: Wait | None = None) -> Result:
        """Commit the transaction; returns the outcome."""
        return self._threads.run(self._scope.commit(wait=wait))


class BlockingRetry:
    """A transaction that has not begun: one attempt by `with`, or several by `for`."""

    def __init__(self, threads: ClientThreads, retry: handles.TransactionRetry) -> None:
        self._threads = threads
        self._retry = retry

    if not TYPE_CHECKING:  # A type checker finds such mistakes itself.

        def __getattr__(self, name: str) -> Any:
            raise handles.not_entered(self, name)

    def __enter__(self) -> BlockingTransaction:
        return BlockingTransaction(self._threads, self._threads.run(self._retry.__aenter__()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.run(self._retry.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[BlockingTransaction]:
        attempts = self._retry.__aiter__()
        while True:
            attempt = self._threads.run(_next(attempts))
            if attempt is None:
                return
            yield BlockingTransaction(self._threads, attempt)


def operations(after: After) -> list[Op] | None:
    if after is None:
        return None
    return [one.op if isinstance(one, BlockingOperation) else one for one in after]


async def _await(awaited: SharedFuture[T], timeout_s: float | None) -> T:
    async with asyncio.timeout(timeout_s):
        return await awaited


async def _await_lazily(get: Callable[[], SharedFuture[T]], timeout_s: float | None) -> T:
    return await _await(get(), timeout_s)


async def _next(attempts: Any) -> handles.Transaction | None:
    return await anext(attempts, None)
