"""Injected bugs about links that are reset: each breaks one rule of resending or of gaps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from overlay.broker.core import Broker
from overlay.broker.losses import Losses
from overlay.broker.resending import Resending
from overlay.effects import Effect
from overlay.hosts.simulator import Simulator
from overlay.messages import AnyMessage, Direction, Hop, LinkReset, Pub
from overlay.node.received import Received


class _ForgetsWhatCame(Received):
    def is_repeated(self, message: AnyMessage) -> bool:
        return False


class PassesRepetitionsOn(Simulator):
    """Brokers do not recognise what comes again."""

    received = _ForgetsWhatCame


class _NeverWaits(Resending):
    def begun(self, neighbour: Hop, now: float) -> list[Effect]:
        return self.finished(self.restoring[neighbour].task, now)


class ResendsBeforeTheRoutes(Broker):
    """Sends what was kept at once, behind the tables, when no subscription has come back."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.resending = _NeverWaits(self)


class _HoldsNothing(Resending):
    def hold(self, source: Hop, pubs: Sequence[Pub]) -> tuple[Hop, ...]:
        return ()


class OvertakesWhatIsKept(Broker):
    """Sends new publications ahead of those that wait for the routes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.resending = _HoldsNothing(self)


class _TellsTheWrongSide(Losses):
    def _concerned(self, source: Hop, edges: Collection[str]) -> Iterator[tuple[Hop, Direction]]:
        turned: dict[Direction, Direction] = {"in": "out", "out": "in", "both": "both"}
        for client, direction in super()._concerned(source, edges):
            yield client, turned[direction]


class TellsTheWrongSide(Broker):
    """Tells subscribers of publishers' losses, and the other way round."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.losses = _TellsTheWrongSide(self)


class _TellsNobody(Losses):
    def _take(self, source: Hop, reset: LinkReset) -> list[Effect]:
        return []


class TellsNobody(Broker):
    """Tells no client of a loss."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.losses = _TellsNobody(self)


class ResetBug(NamedTuple):
    """A bug, and the broken promise that shows it."""

    kind: str
    broker: type[Broker] = Broker
    simulator: type[Simulator] = Simulator


RESET_BUGS = {
    "no-dedup": ResetBug("duplicate", simulator=PassesRepetitionsOn),
    "resent-before-routes": ResetBug("untold", ResendsBeforeTheRoutes),
    "kept-overtaken": ResetBug("order", OvertakesWhatIsKept),
    "gap-wrong-side": ResetBug("needless", TellsTheWrongSide),
    "no-gap": ResetBug("untold", TellsNobody),
}
