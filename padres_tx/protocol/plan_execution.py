"""From the decision on a plan to the end of its last step: how a broker carries out S-TX.

The second half of a static transaction at one broker, after `padres_tx.protocol.planning`. Steps
are carried out in the order of their dependencies, those of a long plan slice by slice; what each
waits for, and why, `padres_tx.engines.s_tx.broker` explains.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec

from overlay.broker.service import RouteChange
from overlay.broker.turns import Worked
from overlay.effects import CancelTimer, Close, Effect, Send
from overlay.errors import PeerError, ProtocolError
from overlay.messages import ClientName, Hop, Operation, Pub, client_hop, is_client
from overlay.tables.routing import Outcome
from padres_tx.client_messages import (
    Effective,
    Ended,
    Step,
    tx_text,
)
from padres_tx.protocol.planning import Planning
from padres_tx.protocol.static_state import (
    Complete,
    DecidePlan,
    Routed,
    StaticState,
)


class PlanExecution(Planning):
    """Committed static transactions at one broker, until all their steps are carried out here."""

    @abstractmethod
    def acknowledge(self, tx: StaticState, now: float) -> list[Effect]:
        """Tell the coordinator's side when a transaction is carried out here and behind here.

        Called whenever that may have become so.
        """

    # --- carrying out, in the order of dependencies ---

    def carry_on(self, tx: StaticState, now: float) -> list[Effect]:
        """Carry out what has all its dependencies behind it, here: in its turn among operations."""
        if tx.queued or tx.running:
            return []  # It is at it.
        if tx.order:
            tx.arm()
            if not tx.ready:
                return self._finish(tx, now)
        tx.queued = True
        return self.broker.in_turn(self.name, tx, now)

    def _run(self, tx: StaticState, now: float) -> Worked:
        """Carry out steps of a plan whose turn it is: some of a long one, all of a short one."""
        effects: list[Effect] = []
        units = 0
        if not tx.order:
            effects, units, more = self._prepare(tx, now)
            if more:
                return Worked(effects, units, more)
            self.check_complete(tx)  # What came before the steps were read could not be compared.
        tx.arm()
        tx.running = True
        while tx.ready and (units < self.broker.slice or not tx.long):
            at = self._next(tx)
            units += 1
            if (operation := tx.operations.get(at)) is not None:
                units += len(operation.drop)
            try:
                effects += self._handle(tx, at, tx.steps[at], now)
            except PeerError as error:  # What it changes was admitted in the client's direction.
                home = self.routing.crt[ClientName(tx.steps[at].client)]
                effects.append(Close(home.hop, error.code, str(error)))
                tx.handle(at)
        tx.running = False
        if tx.ready:
            return Worked(effects, units, True)
        tx.queued = False
        return Worked(effects + self._finish(tx, now), units)

    def _next(self, tx: StaticState) -> int:
        """The step to carry out next."""
        return tx.start()

    def _handle(self, tx: StaticState, at: int, step: Step, now: float) -> list[Effect]:
        if step.kind in ("pub", "tcm"):
            tx.handle(at)
            return self._publish(tx, at, now)
        source = self._home(tx, at)
        if (
            source is None
        ):  # A broker was lost, and the client with it: no other broker will say so.
            tx.handle(at)
            return self._send(tx.span, Complete(tx.id, at))
        here = tx.edges[step.client] == self.broker.name
        if step.kind in ("adv", "uadv") and not here:
            return []  # Its own edge broker sends it out, and says when it is complete.
        return self.broker.submit(self.name, source, tx.operations[at], (tx, at), now)

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        tx, at = context
        if self._home(tx, at) is None:
            return self._complete(Hop(""), Complete(tx.id, at), now)  # It has waited too long.
        name, after = tx_text(tx.id), self._before(tx, at)
        if operation.kind in ("adv", "uadv"):
            return self.broker.start(
                self.name, source, operation, (tx, at), now, tx=name, after=after
            )
        view = self.broker.versions.view()
        footprint = Outcome([], [], [])
        for engine in self.broker.engines.values():
            if engine is not self:
                engine.operation_applied(source, operation, footprint)
        sent = self.routing.apply_here(operation, tx.span, view)
        effects: list[Effect] = []
        if self.broker.trace:
            # Whether it belongs into the table here was worked out by `apply_here`.
            kept = self.routing.prt.copy(operation.client, operation.seq, None) is not None
            effects.append(
                self.broker.record_change(
                    "apply",
                    now,
                    source,
                    msgspec.structs.replace(operation, store=kept),
                    Outcome(sent, [], []),
                    view,
                    name,
                    self.name,
                    after if is_client(source) else (),
                )
            )
        if sent:
            tx.outside += 1
            effects += self.broker.tell(self.name, source, operation, sent, (tx, None), now)
        effects += self.broker.routes_changed((RouteChange(source, operation),), now)
        tx.handle(at)
        return effects + self.carry_on(tx, now)

    def completed(self, context: Any, now: float) -> list[Effect]:
        tx, at = context
        if at is None:
            tx.outside -= 1
            return self.acknowledge(tx, now)
        return self._complete(Hop(""), Complete(tx.id, at), now)

    def _told_complete(self, source: Hop, complete: Complete, now: float) -> list[Effect]:
        tx = self.txs.get(complete.tx)
        if tx is not None and source not in tx.span:
            return []
        if tx is not None and tx.open:
            raise ProtocolError(f"{source} completed a step of {tx_text(tx.id)}, not decided")
        return self._complete(source, complete, now)

    def _complete(self, source: Hop, complete: Complete, now: float) -> list[Effect]:
        tx = self.txs.get(complete.tx)
        if tx is None or tx.status == "aborted":
            return []  # On this side of a link that was lost it has ended differently.
        if not 0 <= complete.step < len(tx.unread):
            raise ProtocolError(f"{source} completed step {complete.step}, which is not there")
        tx.handle(complete.step)
        return [*self._send(self._beyond(tx, source), complete), *self.carry_on(tx, now)]

    def _publish(self, tx: StaticState, at: int, now: float) -> list[Effect]:
        """Hand a publication to this broker's clients, and to brokers outside the span; to the
        clients of a long plan when all brokers have carried that out.

        A tcm has done its work: what it asks for is in the plan.
        """
        step = tx.steps[at]
        assert step.point is not None
        life, number = tx.numbers[at]
        pub = Pub(step.client, number, step.point, step.payload, life=life)
        hops: tuple[Hop, ...] = ()
        view = self.broker.versions.view()
        if step.kind == "pub":
            found = self.routing.prt.hops(pub.point, view)
            hops = tuple(hop for hop in found if hop not in tx.span)
        effects: list[Effect] = []
        if self.broker.trace:
            kinds: list[Any] = ["match"]
            if tx.edges[step.client] == self.broker.name:
                kinds.insert(0, "publish")
            for kind in kinds:
                effects.append(
                    self.broker.record(
                        kind,
                        now,
                        pub,
                        dests=() if kind == "publish" else hops,
                        tx=tx_text(tx.id),
                        engine=self.name,
                        op_kind=step.kind,
                        view=view,
                        after=self._before(tx, at) if kind == "publish" else (),
                    )
                )
        if tx.long:
            clients = tuple(hop for hop in hops if is_client(hop))
            if clients:
                tx.kept.append(Routed(at, pub, clients))
            # Outside, it must not come behind operations that come after it.
            hops = tuple(hop for hop in hops if not is_client(hop))
        return effects + self._deliver(tx, Routed(at, pub, hops), now)

    def _deliver(self, tx: StaticState, routed: Routed, now: float) -> list[Effect]:
        """Hand a publication over."""
        at, pub, hops = routed
        if not hops:
            return []
        effects: list[Effect] = []
        clients = tuple(hop for hop in hops if is_client(hop))
        if self.broker.trace and clients:
            effects.append(
                self.broker.record(
                    "deliver",
                    now,
                    pub,
                    dests=clients,
                    tx=tx_text(tx.id),
                    engine=self.name,
                    op_kind=tx.steps[at].kind,
                    view=self.broker.versions.view(),
                )
            )
        return [*effects, Send(hops, pub)]

    def _finish(self, tx: StaticState, now: float) -> list[Effect]:
        """When all is carried out here, the clients may know, and what waited may go on.

        Of a long one only when it is carried out everywhere.
        """
        if not tx.complete or tx.status != "committed":
            return []
        tx.status = "finished"
        effects = [] if tx.long else self._make_known(tx, now)
        return effects + self.acknowledge(tx, now)

    def _make_known(self, tx: StaticState, now: float) -> list[Effect]:
        self.reserved.release(tx.id)
        timer = CancelTimer(f"{self.name}/{tx_text(tx.id)}")
        return [timer, *self._tell_clients(tx), *self.broker.release(now)]

    # --- what clients are told ---

    def _tell_clients(self, tx: StaticState, decide: DecidePlan | None = None) -> list[Effect]:
        name, effects = self.broker.name, list[Effect]()
        if decide is not None:
            # Who was not asked to do anything need not hear that nothing happened.
            if tx.at_edge:
                ended = Ended(tx.id, False, decide.code, decide.reason)
                effects.append(self._tell(tx.upstream, ended))
            return effects
        words: dict[str, list[Effective]] = {
            client: []
            for client, edge in tx.edges.items()
            if edge == name and self._is_still_here(tx, client)
        }
        for at in tx.order:
            done = tx.operations.get(at)
            if done is not None and done.client in words:
                number = tx.steps[at].seq if done.client == tx.id[0] else 0
                effective = Effective(done.kind, done.filter, done.seq, number, done.events)
                words[done.client].append(effective)
        for client, said in words.items():
            ended = Ended(tx.id, True, effective=tuple(said))
            effects.append(self._tell(client_hop(client), ended))
        return effects

    def _is_still_here(self, tx: StaticState, client: str) -> bool:
        """Whether a client is connected in the life in which its steps were admitted. One that has
        come back holds nothing of them, and must not be told that it does."""
        return client not in tx.lost and self.broker.is_here(client_hop(client))

    # --- small things ---

    def _home(self, tx: StaticState, at: int) -> Hop | None:
        """Where a step's client is; None if it was lost with a broker."""
        client = tx.steps[at].client
        home = self.routing.crt.get(ClientName(client))
        return home.hop if home and client not in tx.lost else None

    @staticmethod
    def _before(tx: StaticState, at: int) -> tuple[str, ...]:
        """What a step comes after, as records call it."""

        def named(before: int) -> str:
            step = tx.steps[before]
            if step.kind in ("pub", "tcm"):
                return tx.named(before)
            return f"{step.client}#{tx.operations[before].seq}"

        return tuple(named(before) for before in tx.steps[at].after)
