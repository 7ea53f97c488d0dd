"""A world whose clients are real sessions (`padres_tx.transactions`), without I/O.

For engines that are all in the client: what the `World` sends by hand, these say by their calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overlay.errors import OverlayError
from overlay.filters import Filter, Value
from overlay.messages import Pub
from padres_tx.session import Answered, Event, Notification, Refused
from padres_tx.static import Op
from padres_tx.transactions import TCM_MARK, Called, Decided
from padres_tx.wire import Ended, Step, TxID
from proofs.world import World
from tests.transactions.test_client_simulated import Player


class Sessions(World):
    """The overlay, and a player for each client."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.players: dict[str, SessionPlayer] = {}

    def join(self, client: str, edge: str) -> None:
        self.oracle.join(client, edge)
        self.players[client] = SessionPlayer(self, client, edge)

    def plain(self, client: str, kind: Any, filter: Filter) -> int:
        """A plain operation; one that the session refuses at the call goes nowhere."""
        try:
            operation = self.players[client].session.operate(kind, filter)
        except OverlayError:
            return 0
        self.sim.send(client, operation)
        return operation.req

    def publish(self, client: str, point: Mapping[str, Value]) -> int:
        try:
            pub = self.players[client].session.publish(dict(point))
        except OverlayError:
            return 0
        self.sim.send(client, pub)
        return pub.seq

    def begin(
        self, engine: str, client: str, steps: Sequence[Step], *, commit: bool = True, **more: Any
    ) -> TxID:
        """A transaction as a program would make it; what is refused at the call aborts it."""
        player = self.players[client]
        tx, events = player.transactions.begin(engine, **more)
        player._carry_out(events)
        try:
            for step in steps:
                player._carry_out(player.transactions.operate(tx, 0, as_op(step))[1])
        except OverlayError as error:
            player._carry_out(player.transactions.abort(tx, str(error)))
        else:
            player._carry_out(player.transactions.commit(tx))
        return tx.id


def as_op(step: Step) -> Op:
    return Op(step.kind, filter=step.filter, point=step.point, payload=step.payload)


class SessionPlayer(Player):
    """One client of such a world; what it is asked for by a tcm is looked up there."""

    def __init__(self, world: Sessions, name: str, edge: str) -> None:
        self.world = world
        super().__init__(world.sim, name, edge)

    def _react(self, notification: Notification) -> list[Op]:
        steps = self.world.reactions[self.session.name](notification.point)
        return [as_op(step) for step in steps if isinstance(step, Step)]

    def _take(self, event: Event) -> None:
        name = self.session.name
        match event:
            case Answered():
                code = event.error.code if event.error is not None else ""
                self.world.done[name, event.req] = code
                self._carry_out(self.transactions.answered(event.req, event.error))
            case Notification() if TCM_MARK not in event.point:
                pub = Pub(event.publisher, event.seq, event.point, event.payload)
                self.world.got[name].append(pub)
            case Decided(tx, result):
                ended = Ended(tx.id, result.committed, result.code, result.reason)
                self.world.ended_at[tx.id].setdefault(tx.id[0], ended)
            case Called(tx, frame, notification):
                error = ""
                try:
                    for op in self._react(notification):
                        self._carry_out(self.transactions.operate(tx, frame, op)[1])
                except OverlayError as refused:
                    error = str(refused)
                self._carry_out(self.transactions.finish(tx, frame, error))
            case Refused():
                pass  # A participant of BL-WAIT has nobody else to tell.
            case _:
                super()._take(event)
