"""Transactions for the asyncio client: Table 2's calls, the Pythonic form, and handlers for tcms.

    async with client.transaction("d-tx") as tx:
        tx.tcm({"class": "p1", "x": "x1"})
        tx.pub({"class": "p1", "x": "x1", "n": 1})

    tx_id = await client.beginTX("d-tx")                    # the same, with the names of Table 2
    client.txTCM(tx_id, {"class": "p1", "x": "x1"})
    client.txPub(tx_id, {"class": "p1", "x": "x1", "n": 1})
    result = await client.commitTX(tx_id)

A shell around `padres_tx.client.transactions`, which has the rules: here events are carried out and
waited for. What a program holds of a transaction is in `padres_tx.client.asyncio.handles`, who acts
on a tcm and when in `padres_tx.client.asyncio.tcm_handlers`.

Nothing waits for ever. The edge broker decides by the transaction's deadline; a broker that does
not even do that is given CALL_TIMEOUT_S more. A lost connection ends everything that waits with
ConnectionLost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from overlay.errors import OverlayError
from overlay.filters import Filter, Value
from overlay.wire.frames import FrameTooLarge
from padres_tx.client.asking import OutcomeLearned
from padres_tx.client.asyncio.awaiting import DrainedFuture, TransactionFutures, fail, succeed
from padres_tx.client.asyncio.channel import Channel
from padres_tx.client.asyncio.handles import (
    Callback,
    Part,
    PendingOperation,
    Transaction,
    TransactionRetry,
    TransactionScope,
    Wait,
    check_wait,
)
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S, Peer, again
from padres_tx.client.asyncio.tcm_handlers import Handler, Handlers, current_part
from padres_tx.client.session import (
    Answered,
    EngineEvent,
    Event,
    FilterLike,
    PointLike,
    Session,
    as_filter,
)
from padres_tx.client.transactions import (
    DEADLINE_S,
    ClientTransaction,
    CommitApplied,
    CommitDrained,
    Doubt,
    DrainedTx,
    OperationDone,
    Result,
    SendForOperation,
    SetTransactionTimer,
    TcmReceived,
    TransactionEnded,
    Transactions,
)
from padres_tx.errors import CallTimeout, ClientClosed, NotCoordinator, TransactionError
from padres_tx.static import Op, Ops

#: What is called with the outcome of a transaction, or with the name of one that is drained.
OnEnd: TypeAlias = Callable[[Result], Awaitable[None] | None]
OnDoubt: TypeAlias = Callable[[Doubt], Awaitable[None] | None]
OnDrained: TypeAlias = Callable[[DrainedTx], Awaitable[None] | None]

F = TypeVar("F")

logger = logging.getLogger("padres_tx")


class Transacting(Peer, ABC):
    """A peer that coordinates transactions and takes part in those of others."""

    def __init__(self, session: Session, channel: Channel) -> None:
        super().__init__(session, channel)
        self._transactions = Transactions(session)
        self._handlers = Handlers(session.name, self._finish, self._handler_failed)
        #: Those of which something can still be awaited.
        self._watches: dict[str, TransactionFutures] = {}
        self._wakers: dict[str, asyncio.TimerHandle] = {}
        #: Answers to questions for outcomes that are awaited, by transaction.
        self._outcomes: dict[str, asyncio.Future[Result]] = {}
        self._on_end: list[OnEnd] = []
        self._on_doubt: list[OnDoubt] = []
        self._on_drained: list[OnDrained] = []

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
        """A transaction: `async with client.transaction(...) as tx`, which commits at its end.

        With `retries`, which are for conflicts: `async for tx in client.transaction(...)` and in
        it `async with tx`. It is aborted if it is not decided within `deadline_s`. `wait` says
        when leaving returns: as soon as the commit is decided, or when every broker has applied it.
        `options` are the engine's own.

        Entering raises UnknownEngine, BadTransaction, TooManyRequests, ConnectionLost; leaving
        TransactionAborted, CallTimeout, ConnectionLost.
        """
        return TransactionRetry(
            self, engine, retries=retries, wait=wait, deadline_s=deadline_s, **options
        )

    async def transact(
        self,
        function: Callable[[Transaction], Any],
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> Any:
        """Run a function, or coroutine function, in a transaction; answers what it returns.

        After a conflict it is run again, up to `retries` times. Raises as `transaction` does.
        """
        value = None
        async for tx in self.transaction(
            engine, deadline_s=deadline_s, wait=wait, retries=retries, **options
        ):
            async with tx:
                value = function(tx)
                if inspect.isawaitable(value):
                    value = await value
        return value

    async def outcome(
        self, txID: str, *, engine: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """How a transaction has ended; waits for the decision if it is still open.

        For whoever has its name, at any broker, also in a new program: brokers remember outcomes
        for some minutes (`padres_tx.protocol.outcomes`). `engine` is needed only for engines from
        outside.

        Raises UnknownTransaction if no broker knows it, TooManyRequests, CallTimeout,
        ConnectionLost.
        """
        await self._room()
        name, events = self._transactions.questions.ask(txID, engine)
        future = self._outcomes.get(name)
        if future is None:
            future = self._outcomes[name] = asyncio.get_running_loop().create_future()
        self._carry_out(events)
        return await self._within(timeout_s, future, f"the outcome of {name}")

    # --- taking part ---

    def on_tcm(self, filter: FilterLike | None, handler: Handler | None) -> None:
        """Call `handler(tx, notification)` on tcms that match the filter, or on all with None.

        What the handler does through tx belongs to the coordinator's transaction; its part is over
        when it returns. If it raises, the transaction is aborted with that reason, and the
        exception is logged and goes to `on_error` if there is one. Of several handlers that match,
        the last registered is called; None as the handler removes one.

        The client has to be subscribed to the tcm. One that has no handler for it aborts the
        transaction, unless its subscription is for events only (`subscribe`). Static transactions
        call no handlers.

        Raises FilterError; TypeError for a handler that cannot be called.
        """
        check_callable("handler", handler)
        self._handlers.register(None if filter is None else as_filter(filter), handler)

    def on_end(self, callback: OnEnd) -> None:
        """Call this with the result of each transaction that the client has to do with.

        In order with the callbacks for notifications: a transaction's publications come first.
        """
        check_callable("callback", callback)
        self._on_end.append(callback)

    def on_doubt(self, callback: OnDoubt) -> None:
        """Call this when a transaction's deadline has passed and its outcome cannot be known yet.

        The client's broker has agreed to the commit and is cut off from the broker that decides.
        `callback` gets the transaction's name and the name of that broker. Nothing has to be done:
        the outcome comes when the broker can be reached again. Until then the client's plain calls
        that overlap the transaction's wait.
        """
        check_callable("callback", callback)
        self._on_doubt.append(callback)

    def on_drained(self, callback: OnDrained) -> None:
        """Call this with a transaction's name when no publication from before it will come.

        The name has `gave` and `took`, the filters that this client has given up and taken in it. A
        worker that has given its stream away can go then. In order with the callbacks for
        notifications.
        """
        check_callable("callback", callback)
        self._on_drained.append(callback)

    # --- Table 2 ---

    async def beginTX(
        self, engine: str = "d-tx", *, deadline_s: float = DEADLINE_S, **options: Any
    ) -> str:
        """Begin a transaction; answers its name, for the calls below. See `transaction`."""
        return (await self._begin(engine, deadline_s=deadline_s, **options)).name

    async def commitTX(self, txID: str, *, wait: Wait = "decided") -> Result:
        """Commit it; answers how it has ended: `status` is "committed" or "aborted".

        If an earlier client of this name has begun it, it answers how that has ended (`outcome`).

        Raises UnknownTransaction, NotCoordinator, TransactionFinished, CallTimeout,
        ConnectionLost.
        """
        check_wait(wait)
        if self._transactions.is_forgotten(txID):
            return await self.outcome(txID)
        return await self._commit_of(self._transactions.find(txID), wait)

    async def abortTX(self, txID: str, reason: str = "") -> Result:
        """Abort it; answers how it has ended, which can be a commit that was faster.

        Raises UnknownTransaction, TransactionFinished, CallTimeout, ConnectionLost.
        """
        return await self._abort_of(self._transactions.find(txID), reason)

    def txTCM(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        ops: Ops | None = None,
        after: Iterable[Op | PendingOperation] | None = None,
        to: Iterable[str] | None = None,
    ) -> PendingOperation:
        """Make others act in it; returns at once, and can be awaited, as all of these.

        They raise UnknownTransaction, and as `TransactionScope.do` does.
        """
        return self._acting(txID).tcm(point, payload, json=json, ops=ops, after=after, to=to)

    def txPub(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: Iterable[Op | PendingOperation] | None = None,
    ) -> PendingOperation:
        """Publish in it."""
        return self._acting(txID).pub(point, payload, json=json, after=after)

    def txAdv(
        self, txID: str, filter: FilterLike, *, after: Iterable[Op | PendingOperation] | None = None
    ) -> PendingOperation:
        """Advertise in it."""
        return self._acting(txID).adv(filter, after=after)

    def txUadv(
        self, txID: str, filter: FilterLike, *, after: Iterable[Op | PendingOperation] | None = None
    ) -> PendingOperation:
        """Un-advertise in it."""
        return self._acting(txID).uadv(filter, after=after)

    def txSub(
        self,
        txID: str,
        filter: FilterLike,
        callback: Callback | None = None,
        *,
        events_only: bool = False,
        after: Iterable[Op | PendingOperation] | None = None,
    ) -> PendingOperation:
        """Subscribe in it."""
        return self._acting(txID).sub(filter, callback, events_only=events_only, after=after)

    def txUsub(
        self, txID: str, filter: FilterLike, *, after: Iterable[Op | PendingOperation] | None = None
    ) -> PendingOperation:
        """Un-subscribe in it."""
        return self._acting(txID).usub(filter, after=after)

    def _acting(self, name: str) -> TransactionScope:
        part = current_part.get()
        if part is not None and part.id == name and part.is_open_at(self):
            return part
        tx = self._transactions.find(name)
        if not tx.coordinator:
            raise NotCoordinator(f"{self.name} acts in {name} only while its handler runs")
        return TransactionScope(self, tx, 0)

    # --- for the handles (padres_tx.client.asyncio.handles) ---

    async def _begin(self, engine: str, **terms: Any) -> ClientTransaction:
        """Begin a transaction, when there is room for its messages."""
        await self._room()
        tx, events = self._transactions.begin(engine, **terms)
        self._watches[tx.name] = TransactionFutures(asyncio.get_running_loop())
        self._carry_out(events)
        return tx

    def _operate_in(
        self, acting: TransactionScope, op: Op, callback: Callback | None
    ) -> PendingOperation:
        self._check()
        check_callable("callback", callback)
        tx = acting.tx
        number, events = self._transactions.operate(tx, acting.frame, op, callback)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tx.half.is_static:
            fail(future, TransactionError("nothing of a static transaction is done before its end"))
        else:
            self._watches[tx.name].operations[number] = future
        self._carry_out(events)
        if future.done() and isinstance(error := future.exception(), FrameTooLarge):
            raise error
        return PendingOperation(future, op, acting if isinstance(acting, Part) else None)

    def _holds_in(self, acting: TransactionScope, filter: Filter) -> bool:
        self._check()
        return self._transactions.holds(acting.tx, acting.frame, filter)

    def _advertises_in(self, acting: TransactionScope, point: dict[str, Value]) -> bool:
        self._check()
        return self._transactions.advertises(acting.tx, acting.frame, point)

    async def _commit_of(self, tx: ClientTransaction, wait: Wait) -> Result:
        check_wait(wait)
        self._check()
        watch = self._watch(tx)
        self._carry_out(self._transactions.commit(tx))
        limit_s = tx.deadline_s + CALL_TIMEOUT_S
        result = await self._within(limit_s, watch.decided, f"the outcome of {tx.name}")
        if wait == "applied" and result.committed:
            what = f"all brokers to apply {tx.name}, which is committed,"
            await self._within(CALL_TIMEOUT_S, watch.applied, what)
        return result

    async def _abort_of(self, tx: ClientTransaction, reason: str) -> Result:
        watch = self._ask_abort(tx, reason)
        return await self._within(CALL_TIMEOUT_S, watch.decided, f"the outcome of {tx.name}")

    async def _within(self, limit_s: float, future: asyncio.Future[F], what: str) -> F:
        self._waiters += 1
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(future)
        except TimeoutError:
            raise CallTimeout(f"waited {limit_s:g} s for {what} in vain") from None
        finally:
            self._waiters -= 1

    def _ask_abort(self, tx: ClientTransaction, reason: str) -> TransactionFutures:
        self._check()
        watch = self._watch(tx)
        self._carry_out(self._transactions.abort(tx, reason))
        return watch

    def _watch(self, tx: ClientTransaction) -> TransactionFutures:
        """What can be awaited of a transaction, also if it is over."""
        watch = self._watches.get(tx.name)
        if watch is None:
            watch = TransactionFutures(asyncio.get_running_loop())
            if tx.result is not None:
                self._settle_watch(watch, tx, tx.result, over=True)
            else:
                assert self._error is not None, tx
                watch.fail(partial(again, self._error))
        return watch

    def _draining(self, tx: ClientTransaction) -> DrainedFuture:
        return DrainedFuture(self, self._watch(tx))

    def _take_turns(self) -> None:
        self._handlers.take_turns()

    # --- events ---

    def _carry_out(self, events: list[Event]) -> None:
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, EngineEvent):
            self._take_transaction(event)
            return
        if isinstance(event, Answered):
            self._carry_out(self._transactions.answered(event.req, event.error))
        super()._take(event)

    def _take_transaction(self, event: EngineEvent) -> None:
        match event:
            case SendForOperation(tx, number, message):
                try:
                    self._channel.send(message)
                except FrameTooLarge as error:
                    self._carry_out(self._transactions.unsent(tx, number, error))
            case OperationDone(tx, number, error):
                self._did(tx, number, error)
            case TcmReceived(tx, frame, notification):
                if tx.name not in self._watches:
                    self._watches[tx.name] = TransactionFutures(asyncio.get_running_loop())
                self._handlers.call(Part(self, tx, frame), notification)
            case SetTransactionTimer(tx, delay_s):
                loop = asyncio.get_running_loop()
                self._wakers[tx.name] = loop.call_later(delay_s, self._wake, tx)
            case TransactionEnded(tx, result):
                self._decided(tx, result)
            case OutcomeLearned():
                self._learned(event)
            case CommitApplied(name):
                if name in self._watches:
                    succeed(self._watches[name].applied, None)
                    self._forget_watch(name)
            case Doubt(name, awaited, reason):
                logger.warning("%s waits for broker %s: %s", name, awaited, reason)
                self._call_back(event, [*self._on_doubt])
            case CommitDrained(name):
                self._drained_came(name)
            case _:
                raise AssertionError(f"nobody takes {event!r}")

    def _drained_came(self, name: str) -> None:
        watch = self._watches.get(name)
        if watch is None:
            self._call_back(name, [*self._on_drained])
            return
        succeed(watch.drained_came, None)

        def reached(name: str) -> None:
            watch.is_drained = True

        def called(name: str) -> None:
            watch.drain()
            if name in self._watches:
                self._forget_watch(name)

        # In its turn: the callbacks of what came before may still be at work.
        self._call_back(name, [reached, *self._on_drained, called])

    def _did(self, tx: ClientTransaction, number: int, error: OverlayError | None) -> None:
        watch = self._watches.get(tx.name)
        future = watch.operations.pop(number, None) if watch is not None else None
        if future is not None:
            if error is None:
                succeed(future, None)
            else:
                fail(future, error)

    def _decided(self, tx: ClientTransaction, result: Result) -> None:
        watch = self._watches.get(tx.name)
        if watch is not None:
            self._settle_watch(watch, tx, result)
            self._forget_watch(tx.name)
        if not result.committed:
            self._handlers.ended(tx)
        self._call_back(result, [*self._on_end])

    def _learned(self, learned: OutcomeLearned) -> None:
        future = self._outcomes.pop(learned.tx, None)
        if future is None:
            return
        if learned.error is not None:
            fail(future, learned.error)
        elif learned.result is not None:
            succeed(future, learned.result)

    def _settle_watch(
        self,
        watch: TransactionFutures,
        tx: ClientTransaction,
        result: Result,
        *,
        over: bool = False,
    ) -> None:
        succeed(watch.decided, result)
        if not result.committed:
            watch.fail(result.error)
            return
        if over or not tx.coordinator:
            succeed(watch.applied, None)
        if not tx.half.drains:
            error = TransactionError(f"{tx.engine} does not tell when it is drained")
            watch.fail_drained(error)
        elif over and self._error is not None and not tx.drained:
            watch.fail_drained(again(self._error))
        elif over:
            watch.drain()

    def _forget_watch(self, name: str) -> None:
        """Keep it as long as something of it is to come; who awaits it has it anyway."""
        if self._watches[name].is_over:
            del self._watches[name]

    def _wake(self, tx: ClientTransaction) -> None:
        del self._wakers[tx.name]
        if self._error is None:
            self._carry_out(self._transactions.wake(tx))

    # --- handlers and callbacks ---

    def _finish(self, part: Part, error: str) -> None:
        events = self._transactions.finish(part.tx, part.frame, error)
        if self._error is None:
            self._carry_out(events)

    def _handler_failed(self, part: Part, error: Exception) -> None:
        """A handler has raised. Its coordinator will hear of it; a client adds what it likes."""

    @abstractmethod
    def _call_back(self, argument: Any, callbacks: list[Callable[[Any], Any]]) -> None:
        """Call these in their turn. A client knows when that is."""

    # --- endings ---

    async def close(self) -> None:
        if not self._closed:
            self._handlers.close()
        try:
            await super().close()
        finally:
            for watch in self._watches.values():  # Those of a connection that was lost before.
                watch.fail(lambda: ClientClosed(f"{self.name} has been closed"))
            self._watches.clear()

    def _end(self, error: OverlayError) -> None:
        first = self._error is None
        super()._end(error)
        if first:
            for waker in self._wakers.values():
                waker.cancel()
            self._wakers.clear()
            for watch in self._watches.values():
                watch.fail(partial(again, error), callbacks=self._closed)
            # Callbacks go on with what has come before the connection was lost.
            self._watches = {
                name: watch for name, watch in self._watches.items() if watch.callbacks_at_work
            }
            for future in self._outcomes.values():
                fail(future, again(error))
            self._outcomes.clear()


def check_callable(what: str, given: object) -> None:
    """Raises TypeError for something else; None is nothing."""
    if given is not None and not callable(given):
        raise TypeError(f"a {what} is a function, not {given!r}")
