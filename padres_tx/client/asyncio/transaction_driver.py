"""Runs a client's transactions on asyncio.

The rules are in `padres_tx.client.transactions`, which has no I/O. `TransactionDriver` carries out
the events that follow from a call or a message, and waits for their futures. A program holds
handles (`padres_tx.client.asyncio.handles`), which call the driver; it calls the handlers for tcms
(`padres_tx.client.asyncio.tcm_handlers`).

A `Begin` takes eleven calls in seven modules:

    client.Client.transaction → handles.TransactionRetry.__aenter__ → handles.Transaction.__aenter__
    → TransactionDriver.begin → requests.Requests.wait_room
                              → transactions.Transactions.begin → Transactions.half
                                → engine_halves.DynamicHalf.begin → BrokerDecidedHalf.send
                              → requests.Requests.carry_out → channel.TcpChannel.send

No call waits for ever. The edge broker decides by the transaction's deadline; a broker that fails
to is given CALL_TIMEOUT_S more. When the connection is lost, every call that waits raises
ConnectionLost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from overlay.errors import OverlayError
from overlay.filters import Filter, Value
from overlay.wire.frames import FrameTooLarge
from padres_tx.client.asking import OutcomeAwaited, OutcomeLearned
from padres_tx.client.asyncio.callbacks import Callbacks, check_callable
from padres_tx.client.asyncio.error_reports import ErrorReports
from padres_tx.client.asyncio.futures import DrainedFuture, TransactionFutures, fail, succeed
from padres_tx.client.asyncio.handles import (
    Callback,
    Part,
    PendingOperation,
    TransactionScope,
    Wait,
    check_wait,
)
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S, Requests, again
from padres_tx.client.asyncio.tcm_handlers import TcmHandlers, current_part
from padres_tx.client.operations import Op
from padres_tx.client.session import Answered, Notification
from padres_tx.client.transactions import (
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

#: Called with the outcome of a transaction, or with the name of one that is drained.
OnEnd: TypeAlias = Callable[[Result], Awaitable[None] | None]
OnDoubt: TypeAlias = Callable[[Doubt], Awaitable[None] | None]
OnDrained: TypeAlias = Callable[[DrainedTx], Awaitable[None] | None]

F = TypeVar("F")

#: The time that an edge broker has to name the missing brokers after a call has timed out. It knows
#: them already, so a broker that needs longer is unreachable itself.
EXPLAIN_TIMEOUT_S = 1.0

logger = logging.getLogger("padres_tx")


class TransactionDriver:
    """The transactions of one client, those of others in which it takes part included."""

    def __init__(self, requests: Requests, callbacks: Callbacks, reports: ErrorReports) -> None:
        self.name = requests.name
        self.transactions = Transactions(requests.session)
        self.handlers = TcmHandlers(requests.name, self._finished, reports.handler_failed)
        self.on_end: list[OnEnd] = []
        self.on_doubt: list[OnDoubt] = []
        self.on_drained: list[OnDrained] = []
        self._requests = requests
        self._callbacks = callbacks
        #: Those of which something can still be awaited, by transaction.
        self._futures: dict[str, TransactionFutures] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: The answers to `outcome` that are awaited, by transaction.
        self._outcomes: dict[str, asyncio.Future[Result]] = {}
        #: Calls that are about to time out and want to know what they waited for.
        self._reasons: dict[str, asyncio.Future[str]] = {}
        requests.when_ended = self._connection_ended
        requests.handle(Answered, self._answered)
        requests.handle(SendForOperation, self._send)
        requests.handle(OperationDone, self._operation_done)
        requests.handle(TcmReceived, self._tcm_received)
        requests.handle(SetTransactionTimer, self._set_timer)
        requests.handle(TransactionEnded, self._ended)
        requests.handle(CommitApplied, self._applied)
        requests.handle(CommitDrained, self._drained_came)
        requests.handle(Doubt, self._in_doubt)
        requests.handle(OutcomeLearned, self._outcome_learned)
        requests.handle(OutcomeAwaited, self._outcome_awaited)

    # --- calls of the handles ---

    async def begin(self, engine: str, **terms: Any) -> ClientTransaction:
        """Begin a transaction when there is room for its messages."""
        await self._requests.wait_room()
        tx, events = self.transactions.begin(engine, **terms)
        self._futures[tx.name] = TransactionFutures(asyncio.get_running_loop())
        self._requests.carry_out(events)
        return tx

    def operate(
        self, scope: TransactionScope, op: Op, callback: Callback | None
    ) -> PendingOperation:
        """Carry out an operation in a transaction; raises as `TransactionScope.do` does."""
        self._requests.check()
        check_callable("callback", callback)
        tx = scope.tx
        number, events = self.transactions.operate(tx, scope.frame, op, callback)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tx.half.is_static:
            fail(future, TransactionError("nothing of a static transaction is done before its end"))
        else:
            self._futures[tx.name].operations[number] = future
        self._requests.carry_out(events)
        if future.done() and isinstance(error := future.exception(), FrameTooLarge):
            raise error
        return PendingOperation(future, op, scope if isinstance(scope, Part) else None)

    def holds(self, scope: TransactionScope, filter: Filter) -> bool:
        """Whether the client is subscribed to a part of the filter, in the transaction."""
        self._requests.check()
        return self.transactions.holds(scope.tx, scope.frame, filter)

    def advertises(self, scope: TransactionScope, point: dict[str, Value]) -> bool:
        """Whether the client may publish at the point, in the transaction."""
        self._requests.check()
        return self.transactions.advertises(scope.tx, scope.frame, point)

    async def commit(self, tx: ClientTransaction, wait: Wait) -> Result:
        """Commit a transaction and wait for the outcome; raises as `Transaction.commit` does."""
        check_wait(wait)
        self._requests.check()
        futures = self.futures(tx)
        self._requests.carry_out(self.transactions.commit(tx))
        limit_s = tx.deadline_s + CALL_TIMEOUT_S
        what = f"the outcome of {tx.name}"
        result = await self._within(limit_s, futures.decided, what, tx.name)
        if wait == "applied" and result.committed:
            what = f"all brokers to apply {tx.name}, which is committed"
            await self._within(CALL_TIMEOUT_S, futures.applied, what, tx.name)
        return result

    async def abort(self, tx: ClientTransaction, reason: str) -> Result:
        """Abort a transaction and wait for the outcome; raises as `TransactionScope.abort` does."""
        futures = self.request_abort(tx, reason)
        what = f"the outcome of {tx.name}"
        return await self._within(CALL_TIMEOUT_S, futures.decided, what, tx.name)

    def request_abort(self, tx: ClientTransaction, reason: str) -> TransactionFutures:
        """Ask for the abort without waiting."""
        self._requests.check()
        futures = self.futures(tx)
        self._requests.carry_out(self.transactions.abort(tx, reason))
        return futures

    async def outcome(self, name: str, engine: str | None, timeout_s: float) -> Result:
        """Ask the broker how a transaction has ended; raises as `Client.outcome` does."""
        await self._requests.wait_room()
        name, events = self.transactions.questions.ask(name, engine)
        future = self._outcomes.get(name)
        if future is None:
            future = self._outcomes[name] = asyncio.get_running_loop().create_future()
        self._requests.carry_out(events)
        return await self._within(timeout_s, future, f"the outcome of {name}", name)

    def scope(self, name: str) -> TransactionScope:
        """Where Table 2's calls act: in the handler that runs, or in a transaction of this client.

        Raises UnknownTransaction, NotCoordinator.
        """
        part = current_part.get()
        if part is not None and part.id == name and part.is_open_at(self):
            return part
        tx = self.transactions.find(name)
        if not tx.coordinator:
            raise NotCoordinator(f"{self.name} acts in {name} only while its handler runs")
        return TransactionScope(self, tx, 0)

    def futures(self, tx: ClientTransaction) -> TransactionFutures:
        """What can be awaited of a transaction, also of one that is over."""
        futures = self._futures.get(tx.name)
        if futures is None:
            futures = TransactionFutures(asyncio.get_running_loop())
            if tx.result is not None:
                self._settle(futures, tx, tx.result, over=True)
            else:
                assert self._requests.error is not None, tx
                futures.fail(partial(again, self._requests.error))
        return futures

    def drained(self, tx: ClientTransaction) -> DrainedFuture:
        """Await it to wait until a transaction is drained."""
        return DrainedFuture(self._callbacks, self.futures(tx))

    async def _within(self, limit_s: float, future: asyncio.Future[F], what: str, tx: str) -> F:
        try:
            with self._requests.waiter():
                async with asyncio.timeout(limit_s):
                    return await asyncio.shield(future)
        except TimeoutError:
            reason = await self._explain(tx)
            raise CallTimeout(f"timed out after {limit_s:g} s waiting for {what}{reason}") from None

    async def _explain(self, tx: str) -> str:
        """The brokers that are unreachable, for the error of a call that has timed out; "" if there
        are none, or if the edge broker does not answer either."""
        if self._requests.error is not None or self._requests.channel.full:
            return ""
        if outage := self._requests.channel.outage:
            return f"; {outage}"
        future = self._reasons.get(tx)
        if future is None:
            events = self.transactions.questions.explain(tx)
            if not events:
                return ""
            future = self._reasons[tx] = asyncio.get_running_loop().create_future()
            self._requests.carry_out(events)
        try:
            async with asyncio.timeout(EXPLAIN_TIMEOUT_S):
                reason = await asyncio.shield(future)
        except TimeoutError:
            return ""
        finally:
            self._reasons.pop(tx, None)
        return f"; {reason}" if reason else ""

    # --- events ---

    def intercept(self, notification: Notification) -> bool:
        """Take a publication with `TCM_MARK`; returns whether it is an engine's."""
        events = self.transactions.notified(notification)
        if events is None:
            return False
        self._requests.carry_out(events)
        return True

    def _answered(self, event: Answered) -> None:
        self._requests.carry_out(self.transactions.answered(event.req, event.error))
        self._requests.answered(event)

    def _send(self, event: SendForOperation) -> None:
        try:
            self._requests.channel.send(event.message)
        except FrameTooLarge as error:
            self._requests.carry_out(self.transactions.unsent(event.tx, event.number, error))

    def _operation_done(self, event: OperationDone) -> None:
        futures = self._futures.get(event.tx.name)
        future = futures.operations.pop(event.number, None) if futures is not None else None
        if future is None:
            return
        if event.error is None:
            succeed(future, None)
        else:
            fail(future, event.error)

    def _tcm_received(self, event: TcmReceived) -> None:
        if event.tx.name not in self._futures:
            self._futures[event.tx.name] = TransactionFutures(asyncio.get_running_loop())
        self.handlers.call(Part(self, event.tx, event.frame), event.notification)

    def _set_timer(self, event: SetTransactionTimer) -> None:
        loop = asyncio.get_running_loop()
        self._timers[event.tx.name] = loop.call_later(event.delay_s, self._timer_fired, event.tx)

    def _timer_fired(self, tx: ClientTransaction) -> None:
        del self._timers[tx.name]
        if self._requests.error is None:
            self._requests.carry_out(self.transactions.wake(tx))

    def _ended(self, event: TransactionEnded) -> None:
        tx, result = event.tx, event.result
        futures = self._futures.get(tx.name)
        if futures is not None:
            self._settle(futures, tx, result)
            self._forget_if_over(tx.name)
        if not result.committed:
            self.handlers.ended(tx)
        self._callbacks.add(result, [*self.on_end])

    def _settle(
        self,
        futures: TransactionFutures,
        tx: ClientTransaction,
        result: Result,
        *,
        over: bool = False,
    ) -> None:
        """Set what follows from an outcome; `over`: nothing else will come."""
        succeed(futures.decided, result)
        if not result.committed:
            futures.fail(result.error)
            return
        if over or not tx.coordinator:
            succeed(futures.applied, None)
        if not tx.half.drains:
            futures.fail_drained(TransactionError(f"{tx.engine} does not report `drained`"))
        elif over and self._requests.error is not None and not tx.drained:
            futures.fail_drained(again(self._requests.error))
        elif over:
            futures.drain()

    def _applied(self, event: CommitApplied) -> None:
        if event.tx in self._futures:
            succeed(self._futures[event.tx].applied, None)
            self._forget_if_over(event.tx)

    def _in_doubt(self, doubt: Doubt) -> None:
        logger.warning("%s waits for broker %s: %s", doubt.tx, doubt.awaited, doubt.reason)
        self._callbacks.add(doubt, [*self.on_doubt])

    def _drained_came(self, event: CommitDrained) -> None:
        name = event.tx
        futures = self._futures.get(name)
        if futures is None:
            self._callbacks.add(name, [*self.on_drained])
            return
        succeed(futures.drained_came, None)

        def reached(name: str) -> None:
            futures.is_drained = True

        def called(name: str) -> None:
            futures.drain()
            if name in self._futures:
                self._forget_if_over(name)

        # As callbacks, because those of what came before may still run.
        self._callbacks.add(name, [reached, *self.on_drained, called])

    def _outcome_learned(self, event: OutcomeLearned) -> None:
        future = self._outcomes.pop(event.tx, None)
        if future is None:
            return
        if event.error is not None:
            fail(future, event.error)
        elif event.result is not None:
            succeed(future, event.result)

    def _outcome_awaited(self, event: OutcomeAwaited) -> None:
        future = self._reasons.pop(event.tx, None)
        if future is not None:
            succeed(future, event.reason)

    def _forget_if_over(self, name: str) -> None:
        """Drop the futures of a transaction if all are done; callers that await them have them."""
        if self._futures[name].is_over:
            del self._futures[name]

    def _finished(self, part: Part, error: str) -> None:
        events = self.transactions.finish(part.tx, part.frame, error)
        if self._requests.error is None:
            self._requests.carry_out(events)

    # --- the end ---

    def _connection_ended(self, error: OverlayError) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for futures in self._futures.values():
            futures.fail(partial(again, error), callbacks=self._requests.closed)
        # Callbacks go on with what came before the connection was lost.
        self._futures = {
            name: futures for name, futures in self._futures.items() if futures.waits_for_callbacks
        }
        for future in self._outcomes.values():
            fail(future, again(error))
        self._outcomes.clear()
        for reason in self._reasons.values():
            succeed(reason, "")
        self._reasons.clear()

    def close(self) -> None:
        """Let all that still wait raise ClientClosed, also those of a connection lost before."""
        for futures in self._futures.values():
            futures.fail(lambda: ClientClosed(f"{self.name} has been closed"))
        self._futures.clear()
