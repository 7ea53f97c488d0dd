"""Transactions for blocking code: what `padres_tx.client.asyncio.transacting` has, without `await`.

    with client.transaction("d-tx") as tx:
        tx.tcm({"class": "p1", "x": "x1"})
        tx.pub({"class": "p1", "x": "x1", "n": 1})

    for tx in client.transaction("d-tx", retries=5):
        with tx: ...

Operations return at once; `wait` on what they return waits until they are done everywhere.

Handlers for tcms run on a thread of their client, one after the other, apart from its callbacks,
so that a callback may wait for a transaction in which the client is called. A handler that waits
lets the same transaction call the client again, on a further thread
(`padres_tx.client.asyncio.tcm_handlers`). When a transaction ends under its handler, what the
handler waits for raises; a thread cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

import msgspec

from padres_tx.client.asyncio import client, handles
from padres_tx.client.asyncio.handles import SharedFuture, Wait
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S
from padres_tx.client.asyncio.transacting import check_callable
from padres_tx.client.session import FilterLike, Notification, PointLike
from padres_tx.client.transactions import DEADLINE_S, Doubt, DrainedTx, Result
from padres_tx.errors import ClientError
from padres_tx.static import Op, Ops

T = TypeVar("T")
A = TypeVar("A", bound=handles.TransactionScope)


class PendingOperation:
    """An operation under way."""

    def __init__(self, client: Transacting, doing: handles.PendingOperation) -> None:
        self._client = client
        self._doing = doing

    def __repr__(self) -> str:
        return repr(self._doing)

    @property
    def op(self) -> Op:
        """The operation itself, for `after` in a static transaction."""
        return self._doing.op

    @property
    def done(self) -> bool:
        return self._doing.done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is done everywhere; the transaction's deadline ends that.

        Raises TransactionAborted, ConnectionLost, why this very operation failed; TimeoutError.
        """
        self._client._run(_await(self._doing, timeout_s))


#: What `after` can name.
After: TypeAlias = Iterable[Op | PendingOperation] | None


class TransactionScope(Generic[A]):
    """One who acts in a transaction; see `padres_tx.client.asyncio.handles.TransactionScope`."""

    def __init__(self, client: Transacting, acting: A) -> None:
        self._client = client
        self._acting = acting

    @property
    def id(self) -> str:
        """The transaction's name, as in Table 2."""
        return self._acting.id

    @property
    def engine(self) -> str:
        return self._acting.engine

    @property
    def coordinator(self) -> str:
        """The client that began the transaction."""
        return self._acting.coordinator

    @property
    def result(self) -> Result | None:
        """How it has ended, once that is known."""
        return self._acting.result

    def __repr__(self) -> str:
        return repr(self._acting)

    def wait_ended(self, timeout_s: float | None = None) -> Result:
        """Wait for the outcome. Raises ConnectionLost, TimeoutError."""
        return self._client._run(_await_lazily(lambda: self._acting.ended, timeout_s))

    def wait_drained(self, timeout_s: float | None = None) -> None:
        """Wait until no publication from before the commit will come any more.

        Every broker has a say in that: while one is away, this waits, unless there is a time-out.

        Raises TransactionAborted, ConnectionLost, TimeoutError; TransactionError if the engine
        does not tell.
        """
        self._client._run(_await_lazily(lambda: self._acting.drained, timeout_s))

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
        """Make others act in the transaction; in a static one, `ops` says what they do."""
        after = _operations(after)
        return self._do(self._acting.tcm, point, payload, json=json, ops=ops, after=after, to=to)

    def pub(
        self,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: After = None,
    ) -> PendingOperation:
        """Publish; receivers get it when the transaction is committed, or never."""
        return self._do(self._acting.pub, point, payload, json=json, after=_operations(after))

    def adv(self, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Advertise."""
        return self._do(self._acting.adv, filter, after=_operations(after))

    def uadv(self, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-advertise, a part or all."""
        return self._do(self._acting.uadv, filter, after=_operations(after))

    def sub(
        self,
        filter: FilterLike,
        callback: Callable[[Notification], None] | None = None,
        *,
        events_only: bool = False,
        after: After = None,
    ) -> PendingOperation:
        """Subscribe, with a callback for what this brings, as in `Client.subscribe`."""
        relay, after = self._client._relay(callback), _operations(after)
        return self._do(self._acting.sub, filter, relay, events_only=events_only, after=after)

    def usub(self, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-subscribe, a part or all."""
        return self._do(self._acting.usub, filter, after=_operations(after))

    def do(
        self, op: Op, callback: Callable[[Notification], None] | None = None
    ) -> PendingOperation:
        """Carry out an operation that is there as data (`padres_tx.static`)."""
        return self._do(self._acting.do, op, self._client._relay(callback))

    def holds(self, filter: FilterLike) -> bool:
        """Whether this client is subscribed to some part of the filter, in the transaction."""
        return self._client._run(call_in_loop(self._acting.holds, filter))

    def advertises(self, point: PointLike) -> bool:
        """Whether this client may publish at that point, in the transaction."""
        return self._client._run(call_in_loop(self._acting.advertises, point))

    def abort(self, reason: str = "") -> Result:
        """Abort the transaction; answers how it has ended."""
        return self._client._run(self._acting.abort(reason))

    def _do(
        self, call: Callable[..., handles.PendingOperation], *args: Any, **more: Any
    ) -> PendingOperation:
        return PendingOperation(self._client, self._client._run(call_in_loop(call, *args, **more)))


#: A client's part in somebody's transaction: what its handler for a tcm is given.
Part: TypeAlias = TransactionScope[handles.Part]

#: Called with a part and the tcm, on the client's handler thread.
Handler: TypeAlias = Callable[[Part, Notification], None]


class Transaction(TransactionScope[handles.Transaction]):
    """A transaction of this client: enter it with `with`, act, and leave it to commit."""

    def __enter__(self) -> Self:
        self._client._run(self._acting.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._client._run(self._acting.__aexit__(kind, error, trace))

    def commit(self, *, wait: Wait | None = None) -> Result:
        """Commit the transaction; answers how it has ended."""
        return self._client._run(self._acting.commit(wait=wait))


class TransactionRetry:
    """A transaction to be: one attempt with `with`, or several with `for`."""

    def __init__(self, client: Transacting, attempts: handles.TransactionRetry) -> None:
        self._client = client
        self._attempts = attempts

    if not TYPE_CHECKING:  # Which finds such mistakes itself.

        def __getattr__(self, name: str) -> Any:
            raise handles.not_entered(self, name)

    def __enter__(self) -> Transaction:
        return Transaction(self._client, self._client._run(self._attempts.__aenter__()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client._run(self._attempts.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Transaction]:
        attempts = self._attempts.__aiter__()
        while True:
            attempt = self._client._run(_next(attempts))
            if attempt is None:
                return
            yield Transaction(self._client, attempt)


class Transacting(ABC):
    """What a blocking client can do with transactions; see the asyncio `Transacting`."""

    _client: client.Client

    def __init__(self) -> None:
        #: One thread for each handler that may run while those before it wait.
        self._acting_threads: list[concurrent.futures.ThreadPoolExecutor] = []
        self._depth = 0

    @abstractmethod
    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asyncio client and wait for it."""

    @abstractmethod
    def _relay(self, callback: Callable[[Any], None] | None) -> Any:
        """The callback as the asyncio client sees it."""

    # --- transactions, the Pythonic way ---

    def transaction(
        self,
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> TransactionRetry:
        """A transaction: `with client.transaction(...) as tx`, which commits at its end.

        With `retries`: `for tx in client.transaction(...)`, and in it `with tx`.
        """
        return TransactionRetry(
            self,
            self._client.transaction(
                engine, deadline_s=deadline_s, wait=wait, retries=retries, **options
            ),
        )

    def transact(
        self,
        function: Callable[[Transaction], T],
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> T:
        """Run a function in a transaction, again after a conflict; answers what it returns."""
        attempts = self.transaction(
            engine, deadline_s=deadline_s, wait=wait, retries=retries, **options
        )
        values: list[T] = []
        for tx in attempts:
            with tx:
                values.append(function(tx))
        return values[-1]

    def outcome(
        self, txID: str, *, engine: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """How a transaction has ended; see the asyncio `Transacting.outcome`."""
        return self._run(self._client.outcome(txID, engine=engine, timeout_s=timeout_s))

    # --- taking part ---

    def on_tcm(self, filter: FilterLike | None, handler: Handler | None) -> None:
        """Call `handler(tx, notification)` on tcms that match the filter, or on all with None."""

        check_callable("handler", handler)

        async def act(part: handles.Part, notification: Notification) -> None:
            assert handler is not None
            thread = self._acting_thread(self._depth)
            # With the context, in which Table 2's calls find the part that they belong to.
            run = contextvars.copy_context().run
            self._depth += 1
            try:
                await asyncio.get_running_loop().run_in_executor(
                    thread, run, contained, handler, TransactionScope(self, part), notification
                )
            finally:
                self._depth -= 1

        self._run(call_in_loop(self._client.on_tcm, filter, None if handler is None else act))

    def on_end(self, callback: Callable[[Result], None]) -> None:
        """Call this with the result of each transaction that the client has to do with."""
        self._run(call_in_loop(self._client.on_end, self._relay(callback)))

    def on_doubt(self, callback: Callable[[Doubt], None]) -> None:
        """Call this when a transaction's deadline has passed and its outcome cannot be known yet;
        see the asyncio client's `on_doubt`."""
        self._run(call_in_loop(self._client.on_doubt, self._relay(callback)))

    def on_drained(self, callback: Callable[[DrainedTx], None]) -> None:
        """Call this with a transaction's name when no publication from before it will come."""
        self._run(call_in_loop(self._client.on_drained, self._relay(callback)))

    def _acting_thread(self, depth: int) -> concurrent.futures.ThreadPoolExecutor:
        while len(self._acting_threads) <= depth:
            self._acting_threads.append(
                concurrent.futures.ThreadPoolExecutor(
                    1, thread_name_prefix=f"handlers of {self._client.name}"
                )
            )
        return self._acting_threads[depth]

    def _end_threads(self) -> None:
        for thread in self._acting_threads:
            thread.shutdown(wait=False, cancel_futures=True)

    # --- Table 2 ---

    def beginTX(
        self, engine: str = "d-tx", *, deadline_s: float = DEADLINE_S, **options: Any
    ) -> str:
        """Begin a transaction; answers its name, for the calls below."""
        return self._run(self._client.beginTX(engine, deadline_s=deadline_s, **options))

    def commitTX(self, txID: str, *, wait: Wait = "decided") -> Result:
        """Commit it; answers how it has ended: `status` is "committed" or "aborted"."""
        return self._run(self._client.commitTX(txID, wait=wait))

    def abortTX(self, txID: str, reason: str = "") -> Result:
        """Abort it; answers how it has ended."""
        return self._run(self._client.abortTX(txID, reason))

    def txTCM(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        ops: Ops | None = None,
        after: After = None,
        to: Iterable[str] | None = None,
    ) -> PendingOperation:
        """Make others act in it; returns at once, and can be waited for, as all of these."""
        after = _operations(after)
        return self._tx(
            self._client.txTCM, txID, point, payload, json=json, ops=ops, after=after, to=to
        )

    def txPub(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: After = None,
    ) -> PendingOperation:
        """Publish in it."""
        return self._tx(
            self._client.txPub, txID, point, payload, json=json, after=_operations(after)
        )

    def txAdv(self, txID: str, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Advertise in it."""
        return self._tx(self._client.txAdv, txID, filter, after=_operations(after))

    def txUadv(self, txID: str, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-advertise in it."""
        return self._tx(self._client.txUadv, txID, filter, after=_operations(after))

    def txSub(
        self,
        txID: str,
        filter: FilterLike,
        callback: Callable[[Notification], None] | None = None,
        *,
        events_only: bool = False,
        after: After = None,
    ) -> PendingOperation:
        """Subscribe in it."""
        relay, after = self._relay(callback), _operations(after)
        return self._tx(
            self._client.txSub, txID, filter, relay, events_only=events_only, after=after
        )

    def txUsub(self, txID: str, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-subscribe in it."""
        return self._tx(self._client.txUsub, txID, filter, after=_operations(after))

    def _tx(
        self, call: Callable[..., handles.PendingOperation], *args: Any, **more: Any
    ) -> PendingOperation:
        return PendingOperation(self, self._run(call_in_loop(call, *args, **more)))


def _operations(after: After) -> list[Op] | None:
    if after is None:
        return None
    return [one.op if isinstance(one, PendingOperation) else one for one in after]


def contained(function: Callable[..., None], *args: Any) -> None:
    """Call a function of the program's on a thread of ours, so that it raises nothing but errors.

    Raises ClientError for what would end the event loop of all blocking clients (SystemExit), or
    what a future cannot carry (StopIteration).
    """
    try:
        function(*args)
    except StopIteration as error:
        raise ClientError(f"{function!r} raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:
        name = type(error).__name__
        raise ClientError(f"{function!r} raised {name}, which ends only a main thread") from error


async def call_in_loop(function: Callable[..., T], *args: Any, **more: Any) -> T:
    return function(*args, **more)


async def _await(awaited: SharedFuture[T], timeout_s: float | None) -> T:
    async with asyncio.timeout(timeout_s):
        return await awaited


async def _await_lazily(get: Callable[[], SharedFuture[T]], timeout_s: float | None) -> T:
    return await _await(get(), timeout_s)


async def _next(attempts: Any) -> handles.Transaction | None:
    return await anext(attempts, None)
