"""Where publications go from this broker, and which of them a client may publish.

A run of plain publications that only have to be forwarded is routed together: this is the path that
decides how fast a broker is. `end_of_run` finds the run, and `route` returns where its publications
go. Every other publication is taken by itself (`receive`): it may need a stamp, wait behind an
operation, or be refused.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from overlay.effects import Effect, Forward, Send
from overlay.errors import FilterError, NotAdvertised, ProtocolError
from overlay.filters import check_point, is_evidently_right
from overlay.matching.index import View
from overlay.messages import AnyMessage, Hop, Pub, PubRefused, is_client
from overlay.notation import format_publication
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: Publications of a client in one run while a link is full. What is refused ends a run, and the
#: rest is looked at anew.
RUN_BESIDE_REFUSED = 32


@stored("publications", fields=(), derived=("_broker",))
class Publications:
    """The part of a broker that routes publications. It has no state of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # --- runs of publications ---

    def end_of_run(self, source: Hop, messages: Sequence[AnyMessage], start: int) -> int:
        """Index of the first message that is not a plain publication which only has to go on.

        Such publications are valid, need no stamp, and wait for nothing.
        """
        broker, from_client = self._broker, is_client(source)
        if (
            (from_client and broker.versions.stamp)
            or source in broker.waiting.stalled
            or source in broker.busy.long
        ):
            return start
        if from_client:
            view = broker.versions.view()
            if not broker.backlogs:
                return self._admitted(source, messages, start, view)
            # Each run is looked at again when one of it is refused.
            few = messages[start : start + RUN_BESIDE_REFUSED]
            end = self._admitted(source, few, 0, view)
            return start + self._before_refused(few[:end], view)
        return self._unhidden(messages, start)

    def route(
        self, source: Hop, messages: Sequence[AnyMessage], start: int, end: int, now: float
    ) -> list[Effect]:
        """Where a run of plain publications goes, and with a trace their records."""
        broker = self._broker
        pubs, view = cast(Sequence[Pub], messages[start:end]), broker.versions.view()
        held = broker.resending.hold(source, pubs) if broker.resending.restoring else ()
        effects: list[Effect] = []
        at = start
        for matching, count in broker.routing.prt.runs([pub.point for pub in pubs], view):
            hops = _without(source, matching, held)
            if broker.trace:
                for one in range(at, at + count):
                    pub = cast(Pub, messages[one])
                    effects += broker.record_publication(source, pub, now, hops, view)
                    if hops:
                        effects.append(Forward(hops, one, 1))
            elif hops:
                effects.append(Forward(hops, at, count))
            at += count
        return effects

    def _admitted(
        self, source: Hop, messages: Sequence[AnyMessage], start: int, view: View | None
    ) -> int:
        """Index of the first message that is not an obviously valid publication of this client."""
        broker = self._broker
        space = broker.routing.srt.get(source)
        if space is None or source not in broker.membership.joined:
            return start
        client, life, admits = source[1:], broker.life_of(source), space.admission()
        for at in range(start, len(messages)):
            pub = messages[at]
            if (
                pub.__class__ is not Pub
                or pub.client != client
                or pub.life != life
                or pub.hidden
                or not (
                    admits(pub.point)
                    or (is_evidently_right(pub.point) and space.holds(pub.point, view))
                )
            ):
                return at
        return len(messages)

    def _unhidden(self, messages: Sequence[AnyMessage], start: int) -> int:
        """Index of the first message of a neighbour that is not a publication, or from which a
        version is hidden that counts here."""
        versions, trace = self._broker.versions.committed, self._broker.trace
        for at in range(start, len(messages)):
            pub = messages[at]
            if (
                pub.__class__ is not Pub
                or (versions and pub.hidden)
                or (trace and not is_evidently_right(pub.point))  # A record needs a valid one.
            ):
                return at
        return len(messages)

    def _before_refused(self, run: Sequence[AnyMessage], view: View | None) -> int:
        """Index of the first publication of a run that is refused since a broker is away."""
        refusal = self._broker.backlogs.refusal
        for at, pub in enumerate(run):
            if refusal(cast(Pub, pub).point, view) is not None:
                return at
        return len(run)

    # --- single publications ---

    def receive(self, source: Hop, pub: Pub, now: float) -> list[Effect]:
        """Route a publication, or let it wait behind an operation of the same neighbour."""
        if self._broker.trace and not is_client(source):
            # A neighbour vouches for what it forwards, but a record needs a valid point.
            try:
                check_point(pub.point)
            except FilterError as error:
                raise ProtocolError(f"{source} forwarded an invalid publication: {error}") from None
        return [] if self._broker.waiting.stalls(source, pub) else self.publish(source, pub, now)

    def publish(self, source: Hop, pub: Pub, now: float) -> list[Effect]:
        """Route a publication now; one of a client is checked and stamped."""
        broker = self._broker
        view = broker.versions.view(pub.hidden)
        if is_client(source):
            refusal = self._refusal(source, pub, view)
            if refusal is not None:
                return [Send((source,), refusal)]
            life = broker.life_of(source)
            if broker.versions.stamp or pub.life != life:
                pub = msgspec.structs.replace(pub, hidden=broker.versions.stamp, life=life)
        held = broker.resending.hold(source, (pub,)) if broker.resending.restoring else ()
        hops = _without(source, broker.routing.prt.hops(pub.point, view), held)
        effects = broker.record_publication(source, pub, now, hops, view) if broker.trace else []
        return [*effects, Send(hops, pub)] if hops else effects

    def _refusal(self, source: Hop, pub: Pub, view: View | None) -> PubRefused | None:
        """Why a client's publication is not routed; None if it is.

        Raises ProtocolError if the client may not send such a message at all.
        """
        broker = self._broker
        if self._admitted(source, (pub,), 0, view):
            return self._away(pub, view)
        if source not in broker.membership.joined or source[1:] != pub.client:
            raise ProtocolError(f"{source} publishes in the name of {pub.client!r}")
        if pub.life not in (0, broker.life_of(source)):
            raise ProtocolError(f"{source} publishes in a life that is not its own")
        if pub.hidden:
            raise ProtocolError("only a broker stamps publications")
        try:
            check_point(pub.point)
        except FilterError as error:
            return PubRefused(pub.seq, error.code, str(error))
        if broker.routing.may_publish(source, pub.point, view):
            return self._away(pub, view)
        return PubRefused(
            pub.seq,
            NotAdvertised.code,
            f"{pub.client} has not advertised {format_publication(pub.point)}",
        )

    def _away(self, pub: Pub, view: View | None) -> PubRefused | None:
        """Why a publication that its client may send cannot be delivered now, if it cannot."""
        backlogs = self._broker.backlogs
        error = backlogs.refusal(pub.point, view) if backlogs else None
        return PubRefused(pub.seq, error.code, str(error)) if error is not None else None


def _without(source: Hop, hops: tuple[Hop, ...], held: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """Where a publication goes now; a client is given its own, a neighbour has it already, and for
    some it is held."""
    if held:
        hops = tuple(hop for hop in hops if hop not in held)
    if is_client(source) or source not in hops:
        return hops
    return tuple(hop for hop in hops if hop != source)
