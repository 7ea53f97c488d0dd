"""Messages that a forged or mistaken neighbour could send: any type, any field that decodes.

Every choice comes from a tape, so that a run can be repeated and shrunk. Messages are made from
their struct types by reflection: a new message type is covered as soon as it is in a union. Values
are mostly plausible (a client, transaction or request number that exists) and sometimes extreme.

This module knows no brokers; `tests.fuzz.forged_world` does.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from overlay import messages
from overlay.errors import ProtocolError
from overlay.filters import Filter, Value, between, present
from overlay.messages import EngineMessage
from overlay.wire import codec
from padres_tx import client_messages
from padres_tx.protocol import dynamic_messages, static_state

T = TypeVar("T")

DYNAMIC = ("d-tx", "d-tx-ni")
ENGINES = (*DYNAMIC, "s-tx")
FILTERS = (
    Filter(cls="p"),
    Filter(cls="p", x=1),
    Filter(cls="q"),
    Filter(cls=present(), x=between(0, 5)),
    Filter(cls="p", y=between("a", "b")),
)
ODD_POINTS: tuple[dict[str, Any], ...] = (
    {},
    {"cls": float("nan")},
    {"cls": float("inf"), "": 1},
    {"x": (1 << 64) - 1},
    {"a b": "p"},
    {f"a{n}": n for n in range(300)},
)
POINTS = ({"cls": "p"}, {"cls": "p", "x": 1}, {"cls": "q", "x": 3}, {"cls": "z"})
#: Numbers at the edges of what a struct's field takes, and of what msgpack carries.
EXTREMES = (
    -1,
    0,
    1 << 20,
    1 << 31,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
)
FLOATS = (0.0, 0.5, 30.0, 3600.0, -1.0, 1e308, float("inf"), float("nan"))
TEXTS = ("", "B1", "B2", "B3", "B9", "conflict", "broker", "@E", "?1", "a/b:c", "\x00", "é" * 70)
#: The brokers of clients, as `tests.fuzz.forged_world` has them.
AT = {"F": "B1", "E": "B2", "D": "B2", "C": "B3"}
NAMES = ("E", "D", "F", "C", "Z", "B2", "")

#: All that can be the body of an engine's message.
BODIES = {
    engine: (*get_args(between_brokers), *get_args(client_messages.FromClient))
    for engine, between_brokers in [
        ("d-tx", dynamic_messages.AnyDynamicMessage),
        ("d-tx-ni", dynamic_messages.AnyDynamicMessage),
        ("s-tx", static_state.AnyStaticMessage),
    ]
}
CODECS = {
    "d-tx": dynamic_messages.codec,
    "d-tx-ni": dynamic_messages.codec,
    "s-tx": static_state.codec,
}
MESSAGES = get_args(messages.AnyMessage)


class Tape:
    """Choices, read from bytes; all 0 when the tape has ended."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def choose(self, n: int) -> int:
        """A number from 0 to n - 1."""
        if n <= 1 or self.ended:
            return 0
        size = 1 if n <= 256 else 2
        number = int.from_bytes(self._data[self._at : self._at + size])
        self._at += size
        return number % n

    def one(self, of: Any) -> Any:
        return of[self.choose(len(of))]

    def often(self, of: int) -> bool:
        """All but one time in so many."""
        return self.choose(of) > 0 or self.ended


class Forger:
    """Makes messages, from what it has seen on its link and from nothing."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        #: What has crossed the link, in either direction, the latest last.
        self.seen: list[messages.AnyMessage] = []
        self.txs: list[Any] = [("F", 0, 1), ("E", 0, 7)]
        self.numbers: list[int] = [1, 2, 3]
        self.lives: list[int] = [0]
        #: Transactions that the forger makes up, as they would go on, with their engines.
        self.scripts: list[tuple[str, list[Any]]] = []
        self._made_up = 1000

    def see(self, message: messages.AnyMessage) -> None:
        """Learn from a message: it can be repeated, and its names can be used."""
        self.seen = [*self.seen[-30:], message]
        self._learn(message)
        if isinstance(message, EngineMessage) and message.engine in CODECS:
            try:
                self._learn(CODECS[message.engine].decode(message.body))
            except ProtocolError:
                return

    def _learn(self, struct: Any) -> None:
        for field in struct.__struct_fields__:
            value = getattr(struct, field)
            if field == "tx" and value not in self.txs:
                self.txs = [*self.txs[-8:], value]
            elif field in ("req", "seq", "step") and value not in self.numbers:
                self.numbers = [*self.numbers[-12:], value]
            elif field == "life" and value not in self.lives:
                self.lives = [*self.lives[-6:], value]

    # --- messages ---

    def forged(self) -> bytes:
        """The body of a frame: a new message, or one that was seen, as it was or changed."""
        how = self.tape.choose(12)
        if how > 7:
            return codec.encode(self._next_of_script())
        if how < 2 and self.seen:
            return codec.encode(self.tape.one(self.seen[::-1]))
        if how < 4 and self.seen:
            return codec.encode(self.changed(self.tape.one(self.seen[::-1])))
        if how == 7:
            return codec.encode(self.struct(self.tape.one(MESSAGES)))
        return codec.encode(self._about_a_transaction())

    def _next_of_script(self) -> EngineMessage:
        """The next message of a transaction that the forger makes up, or one of another."""
        if not self.scripts or self.tape.choose(6) == 0:
            self.scripts = [*self.scripts[-3:], self._script()]
        engine, left = self.tape.one(self.scripts[::-1])
        message = left.pop(0) if self.tape.often(12) else left[-1]
        if not left:
            self.scripts = [script for script in self.scripts if script[1]]
        if not self.tape.often(12):
            message = self.changed(message)
        return EngineMessage(engine, msgspec.Raw(CODECS[engine].encode(message)))

    def _script(self) -> tuple[str, list[Any]]:
        """A transaction as B1 would send it, up to its end."""
        tape, engine = self.tape, self.tape.one(ENGINES)
        self._made_up += 1
        tx = (tape.one(("F", "F", "Z", "C")), tape.one(self.lives), self._made_up)
        self.txs = [*self.txs[-8:], tx]
        committed = tape.often(3)
        if engine == "s-tx":
            made = self.struct(static_state.Plan)
            plan = self._plausible(msgspec.structs.replace(made, tx=tx))
            operations, numbers = {}, {}
            for at, step in enumerate(plan.steps):
                if plan.edges[step.client] == "B1":
                    if step.filter is None:
                        numbers[at] = (0, at)
                    else:
                        operations[at] = messages.Operation(
                            0,
                            tape.one(("sub", "usub", "adv", "uadv"))
                            if step.kind in ("pub", "tcm") or not tape.often(9)
                            else step.kind,
                            step.client,
                            self._number("seq"),
                            step.filter,
                            drop=self.value(tuple[int, ...], "seq"),
                        )
            completes = [static_state.Complete(tx, at) for at in operations]
            return engine, [
                plan,
                static_state.Admitted(tx, "B1", operations, numbers),
                static_state.DecidePlan(tx, committed),
                *completes,
                static_state.PlanCarriedOut(tx),
                static_state.PlanSettled(tx),
            ]
        ops = [self.struct(dynamic_messages.TxOperation) for _ in range(tape.choose(4))]
        fences: list[Any] = []
        if engine == "d-tx" and tape.choose(3) == 0:
            fences = [dynamic_messages.Fence(tx, tape.choose(50), 9.0)] * 2
        prepare = [dynamic_messages.Prepare(tx)] if engine == "d-tx" else []
        return engine, [
            *fences,
            dynamic_messages.Init(tx, tape.choose(50), (), 9.0),
            *[msgspec.structs.replace(op, tx=tx) for op in ops],
            *prepare,
            dynamic_messages.Decide(tx, committed),
            dynamic_messages.Forget(tx),
        ]

    def _about_a_transaction(self) -> EngineMessage:
        engine = self.tape.one(ENGINES)
        made = self.struct(self.tape.one(BODIES[engine]))
        if isinstance(made, static_state.Plan) and self.tape.often(4):
            made = self._plausible(made)
        return EngineMessage(engine, msgspec.Raw(CODECS[engine].encode(made)))

    def _plausible(self, plan: static_state.Plan) -> static_state.Plan:
        """A plan that could be: its steps are in order, and its clients are where they are."""
        steps = []
        for at, step in enumerate(plan.steps[:5] or (self.struct(client_messages.Step),)):
            is_event = step.kind in ("pub", "tcm")
            filter = None if is_event else step.filter or self.tape.one(FILTERS)
            point = dict(self.tape.one(POINTS)) if is_event else None
            client = self.tape.one(NAMES[:4])
            after = (at - 1,) if at and self.tape.choose(2) else ()
            receivers = (self.tape.one(NAMES[:4]),) if step.kind == "tcm" else ()
            made = client_messages.Step(client, step.kind, filter, point, b"", 9, after, receivers)
            steps.append(made)
        names = [plan.tx[0], *(name for step in steps for name in (step.client, *step.receivers))]
        edges = {name: AT.get(name, "B1") for name in names}
        return static_state.Plan(plan.tx, tuple(steps), edges, 20.0)

    def changed(self, message: Any) -> Any:
        """The message with another value in one field, perhaps deep inside."""
        if isinstance(message, EngineMessage):
            if message.engine not in CODECS or not self.tape.often(12):
                return msgspec.structs.replace(message, engine=self.tape.one((*ENGINES, "x-tx")))
            try:
                inner = CODECS[message.engine].decode(message.body)
            except ProtocolError:
                return message
            body = CODECS[message.engine].encode(self.changed(inner))
            return EngineMessage(message.engine, msgspec.Raw(body))
        fields = message.__struct_fields__
        if not fields:
            return message
        field = self.tape.one(fields)
        value = getattr(message, field)
        if isinstance(value, msgspec.Struct) and self.tape.often(4):
            return msgspec.structs.replace(message, **{field: self.changed(value)})
        made = self.value(get_type_hints(type(message), include_extras=True)[field], field)
        return msgspec.structs.replace(message, **{field: made})

    def struct(self, kind: Any) -> Any:
        """A struct of this type; its optional fields are left out now and then."""
        hints = get_type_hints(kind, include_extras=True)
        info = msgspec.structs.fields(kind)
        values = {}
        for field in info:
            optional = not field.required
            if optional and self.tape.choose(3) == 0:
                continue
            values[field.name] = self.value(hints[field.name], field.name)
        return kind(**values)

    def value(self, kind: Any, field: str) -> Any:
        """A value of this type, plausible for a field of this name."""
        tape = self.tape
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.value(args[0], field)
        if kind is Any:
            return tape.one((None, 1, "x", [1], {"a": 1}))
        if field == "tx" or (origin is tuple and args[:1] == (str,) and len(args) == 3):
            return self._tx()
        if origin in (Union, types.UnionType):
            return self.value(tape.one(args), field)
        if origin is Literal:
            return tape.one(args)
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return tuple(self.value(args[0], field) for _ in range(self._length()))
        if origin is tuple:
            return tuple(self.value(arg, field) for arg in args)
        if origin is dict:
            if args == (str, Value):
                return dict(tape.one(POINTS if tape.often(8) else ODD_POINTS))
            return {
                self.value(args[0], field): self.value(args[1], field)
                for _ in range(self._length())
            }
        return self._plain(kind, field)

    def _plain(self, kind: Any, field: str) -> Any:
        tape = self.tape
        if kind is type(None):
            return None
        if kind is bool:
            return bool(tape.choose(2))
        if kind is int:
            return self._number(field)
        if kind is float:
            return tape.one(FLOATS)
        if kind is bytes:
            return b"x" * tape.one((0, 1, 1000))
        if kind is Filter:
            return tape.one(FILTERS)
        if kind is msgspec.Raw:
            return msgspec.Raw(tape.one((b"\x90", b"\x01", b"\x91\x63")))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(kind)
        return self._text(field)

    def _length(self) -> int:
        return self.tape.one((0, 1, 1, 2, 3)) if self.tape.often(40) else 300

    def _number(self, field: str) -> int:
        if not self.tape.often(10):
            return int(self.tape.one(EXTREMES))
        if field == "life":
            return int(self.tape.one(self.lives))
        if field in ("after", "step", "operations", "numbers"):
            return self.tape.choose(4)
        return int(self.tape.one((0, 1, 2, *self.numbers)))

    def _text(self, field: str) -> str:
        if not self.tape.often(10):
            return str(self.tape.one(TEXTS)) * (500 if not self.tape.often(30) else 1)
        if field in ("client", "to", "receivers", "publisher", "edges"):
            if field == "edges" and self.tape.choose(2):
                return str(self.tape.one(("B1", "B2", "B3")))
            return str(self.tape.one(NAMES))
        if field in ("edge", "broker", "neighbour"):
            return str(self.tape.one(("B1", "B2", "B3", "B7")))
        if field == "engine":
            return str(self.tape.one((*ENGINES, "x-tx")))
        if field == "code":
            return str(self.tape.one(("", "conflict", "broker", "name-taken")))
        return str(self.tape.one(TEXTS))

    def _tx(self) -> Any:
        if self.tape.often(4):
            return self.tape.one(self.txs)
        return (self._text("client"), self._number("life"), self._number("number"))
