"""A whole overlay as a tuple of small numbers, and the moves that lead from one to the next.

A global state is one number for each node (see `nodes`) and one for the content of each link. A
move delivers the first frame of a link, or lets a node act unasked. Once computed, both are looked
up in tables; states are compared and hashed as tuples.

**Moves that need not be tried** (`Network.moves`). Deliveries to different nodes commute: each
takes the head of a queue into its node and appends to queues out of it, so neither enables,
disables or changes the other, in either order. Only moves of one node compete. A set D of nodes may
therefore go first (all enabled moves of its nodes, and no others) if no other node can give a node
of D a choice that it does not have yet. In a tree that can be decided: what comes to d from its
neighbour s outside D is sent by s, and as long as D does not move, s receives only from the branch
behind it. So it is enough that for each such s either a frame already waits on the link from s to d
(then the next move from there is known, whatever comes behind it), or the branch behind s is
silent: nothing on its links, including the link from d to s, and no node there that can act
unasked. These are persistent sets in the sense of Godefroid; with them every state in which nothing
moves any more is still reached, and that is where runs are checked. Faults of the code stay in the
state, so they are seen there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from overlay.messages import Hop
from proofs.explore.nodes import ExploredNode, NodeStep, Numbering

#: Numbers of the nodes' states, then of the links' contents.
State: TypeAlias = tuple[int, ...]


class NetworkMove(NamedTuple):
    """Deliver the head of a link (`link` >= 0), or let a node act unasked."""

    node: int
    link: int
    own_move: str = ""


class Queues:
    """Contents of links, numbered; 0 is the empty one."""

    def __init__(self) -> None:
        self._contents = Numbering[tuple[int, ...]]()
        self._contents.of(())
        self._pushed: dict[tuple[int, tuple[int, ...]], int] = {}
        self._popped: dict[int, tuple[int, int]] = {}

    def push(self, queue: int, frames: tuple[int, ...]) -> int:
        key = (queue, frames)
        found = self._pushed.get(key)
        if found is None:
            found = self._pushed[key] = self._contents.of(self._contents[queue] + frames)
        return found

    def pop(self, queue: int) -> tuple[int, int]:
        """The first frame, and the rest."""
        found = self._popped.get(queue)
        if found is None:
            content = self._contents[queue]
            found = self._popped[queue] = (content[0], self._contents.of(content[1:]))
        return found


#: The node's state after a move, and the frames that it puts on links (by their places in a state).
_Step: TypeAlias = tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]


class Network:
    """Nodes, connected as a tree by links in both directions."""

    def __init__(self, nodes: Sequence[ExploredNode], edges: Iterable[tuple[Hop, Hop]]) -> None:
        self.nodes = nodes
        self.number = {node.hop: at for at, node in enumerate(nodes)}
        self.links: list[tuple[int, int]] = []
        for one, other in edges:
            a, b = self.number[one], self.number[other]
            self.links += [(a, b), (b, a)]
        self._link = {ends: at for at, ends in enumerate(self.links)}
        self.frames = Numbering[bytes]()
        self._queues = Queues()
        self._delivered: dict[tuple[int, int, int], _Step] = {}
        self._unasked: dict[tuple[int, int, str], _Step] = {}
        size = len(nodes)
        #: For each node: the links into it, and its neighbours.
        self._into = [[at for at, (_, b) in enumerate(self.links) if b == n] for n in range(size)]
        self._neighbours = [[b for a, b in self.links if a == n] for n in range(size)]
        self._branches = {(d, s): self._branch(d, s) for d, s in self.links}

    def _branch(self, d: int, s: int) -> tuple[list[int], list[int]]:
        """The nodes behind s, seen from d, and the links that lead to them."""
        nodes, todo = [s], [s]
        while todo:
            node = todo.pop()
            beyond = [n for n in self._neighbours[node] if n != d and n not in nodes]
            nodes += beyond
            todo += beyond
        return nodes, [at for at, (_, b) in enumerate(self.links) if b in nodes]

    # --- states ---

    def state(self, sent: Iterable[tuple[Hop, Hop, bytes]]) -> State:
        """Every node in its first state, with these frames on their links."""
        queues = [0] * len(self.links)
        for source, dest, frame in sent:
            link = self._link[self.number[source], self.number[dest]]
            queues[link] = self._queues.push(queues[link], (self.frames.of(frame),))
        return (*([0] * len(self.nodes)), *queues)

    def apply(self, state: State, move: NetworkMove) -> State:
        """The state after a move."""
        node, link, own_move = move
        after = list(state)
        if link >= 0:
            at = len(self.nodes) + link
            frame, after[at] = self._queues.pop(state[at])
            step = self._delivered.get((state[node], link, frame))
        else:
            frame = -1
            step = self._unasked.get((node, state[node], own_move))
        if step is None:
            made = self._make(state, move)
            step = made.state, self._sent(node, made.sent)
            if link >= 0:
                self._delivered[state[node], link, frame] = step
            else:
                self._unasked[node, state[node], own_move] = step
        after[node], sent = step
        for out, frames in sent:
            after[out] = self._queues.push(after[out], frames)
        return tuple(after)

    def look(self, state: State, move: NetworkMove) -> tuple[bytes | None, NodeStep]:
        """The frame that a move delivers (None: none), and the step that follows, in full."""
        frame = self._head(state, move.link) if move.link >= 0 else None
        return frame, self._make(state, move)

    def _make(self, state: State, move: NetworkMove) -> NodeStep:
        node = self.nodes[move.node]
        if move.link < 0:
            return node.move_unasked(state[move.node], move.own_move)
        source = self.nodes[self.links[move.link][0]].hop
        return node.receive(state[move.node], source, self._head(state, move.link))

    def _head(self, state: State, link: int) -> bytes:
        return self.frames[self._queues.pop(state[len(self.nodes) + link])[0]]

    def _sent(
        self, node: int, sent: Iterable[tuple[Hop, bytes]]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        by_link: dict[int, tuple[int, ...]] = {}
        for hop, frame in sent:
            at = len(self.nodes) + self._link[node, self.number[hop]]
            by_link[at] = (*by_link.get(at, ()), self.frames.of(frame))
        return tuple(by_link.items())

    # --- moves ---

    def enabled(self, state: State, node: int) -> list[NetworkMove]:
        """The moves that a node can make next."""
        size = len(self.nodes)
        found = [NetworkMove(node, link) for link in self._into[node] if state[size + link]]
        found += [
            NetworkMove(node, -1, own_move) for own_move in self.nodes[node].own_moves(state[node])
        ]
        return found

    def moves(self, state: State) -> list[NetworkMove]:
        """The moves that have to be tried; none if nothing can move."""
        best: list[NetworkMove] = []
        enabled = [self.enabled(state, node) for node in range(len(self.nodes))]
        active = [bool(moves) for moves in enabled]
        for node, moves in enumerate(enabled):
            if not moves:
                continue
            found = moves
            for other in self._closure(state, active, node):
                if other != node:
                    found = found + enabled[other]
            if not best or len(found) < len(best):
                best = found
            if len(best) == 1:
                break
        return best

    def _closure(self, state: State, active: list[bool], node: int) -> list[int]:
        """A node and the nodes that have to go first with it."""
        size = len(self.nodes)
        first, todo = [node], [node]
        while todo:
            d = todo.pop()
            for s in self._neighbours[d]:
                if s in first or state[size + self._link[s, d]]:
                    continue
                if any(active[n] for n in self._branches[d, s][0]):
                    first.append(s)
                    todo.append(s)
        return first
