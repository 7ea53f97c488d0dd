"""A tree of brokers, their addresses, and the brokers of clients.

People write topologies by hand, so the model is pydantic's and strict: an unknown field is an
error, and every error names the broker, edge or field. A Topology object is always a tree
(connected, acyclic) of distinct brokers.

networkx is imported only when a graph is needed: importing it takes 0.2 s, and every broker process
loads a topology.

This module must not know how brokers run or what messages they exchange.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from topologies import text
from topologies.errors import TopologyError

if TYPE_CHECKING:
    import networkx as nx

#: The topologies that `load` knows by name, smallest first: one data file each.
NAMES = ("one", "three", "five", "nine")

#: The port of B1 in named topologies and, by default, in generated ones, so that
#: `--at 127.0.0.1:7001` always means B1.
BASE_PORT = 7001

#: One OS process each: far more than a machine runs, few enough to check and draw at once.
MAX_BROKERS = 1000

#: A minute: a link counts as dead long before, so a longer delay is a mistake in the unit.
MAX_DELAY_MS = 60_000.0

#: A wrong file can hold thousands of errors; a person corrects a few at a time.
MAX_ERRORS_SHOWN = 3

_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
#: As the services themselves are called.
_SERVICE = r"[a-z][a-z0-9-]{0,63}"
_HOST = r"[A-Za-z0-9_.:%-]{1,253}"


def _matching(pattern: str, reason: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


def _no_bool(value: object) -> object:
    # bool is an int to Python, and pydantic would read `port: true` as port 1.
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


Name = Annotated[
    str,
    _matching(_NAME, "should be a letter, then at most 63 letters, digits, '_', '.' or '-'"),
]
Host = Annotated[str, _matching(_HOST, "should be a host name or an IP address")]
Service = Annotated[
    str,
    _matching(_SERVICE, "should be a lower-case letter, then at most 63 of those, digits or '-'"),
]
Port = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)]
DelayMs = Annotated[
    float, BeforeValidator(_no_bool), Field(ge=0, le=MAX_DELAY_MS, allow_inf_nan=False)
]

#: Where brokers keep their state: what is in memory is lost when a broker is killed.
Durability: TypeAlias = Literal["memory", "disk"]

#: Client name -> name of the broker that it connects to.
Placement: TypeAlias = dict[Name, Name]


class _Spec(BaseModel):
    """Base of BrokerSpec, Edge and Topology: frozen, strict, and every error is a TopologyError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _raise_topology_error(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, Mapping):
            # `clients:` with nothing (or only comments) below it is an absent field.
            data = {field: value for field, value in data.items() if value is not None}
        try:
            return validate(data)
        except ValidationError as error:
            raise TopologyError(f"{cls._label(data)}: {_readable(error, cls)}") from None

    @classmethod
    @abstractmethod
    def _label(cls, data: object) -> str:
        """Return how an error message names the object that `data` should describe."""


class BrokerSpec(_Spec):
    """One broker and its address; port 0 means a free port."""

    name: Name
    host: Host = "127.0.0.1"
    port: Port

    @property
    def address(self) -> str:
        """Return host:port, with brackets around an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def _label(cls, data: object) -> str:
        return f"broker {_given(data, 'name') or _short(data)}"


class Edge(_Spec):
    """A link between two brokers, the same in both directions; in a file also `[B1, B2]`."""

    a: Name
    b: Name
    delay_ms: DelayMs = 0.0

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, data: Any) -> Any:
        if isinstance(data, list | tuple):
            if len(data) != 2:
                raise TopologyError(
                    f"edge {_short(data)}: expected two brokers, [B1, B2], "
                    "or a mapping with a, b and delay_ms"
                )
            return {"a": data[0], "b": data[1]}
        return data

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.a, self.b))

    def __str__(self) -> str:
        return f"{self.a}-{self.b}"

    @classmethod
    def _label(cls, data: object) -> str:
        ends = [_given(data, "a"), _given(data, "b")]
        return f"edge {'-'.join(ends) if all(ends) else _short(data)}"


class Topology(_Spec):
    """A tree of brokers with the placement of clients.

    Raises TopologyError, which names the broker, edge or client, if it is not a tree.
    """

    name: Name
    brokers: tuple[BrokerSpec, ...]
    edges: tuple[Edge, ...] = ()
    clients: Placement = {}
    client_delay_ms: DelayMs = 0.0
    #: The services that every broker hosts beside the transaction engines.
    services: tuple[Service, ...] = ()
    #: The same for all brokers; where each keeps its state on disk is not the topology's business.
    durability: Durability = "memory"

    @model_validator(mode="after")
    def _check(self) -> Self:
        # In this order: each check relies on those before it.
        problem = _brokers_problem(self.brokers) or _edges_problem(self) or _clients_problem(self)
        problem = problem or _services_problem(self.services)
        if problem:
            raise TopologyError(f"topology {self.name}: {problem}")
        return self

    @classmethod
    def _label(cls, data: object) -> str:
        return f"topology {_given(data, 'name')}" if _given(data, "name") else "topology"

    def broker(self, name: str) -> BrokerSpec:
        """Return the broker of that name. Raises TopologyError if there is none."""
        for broker in self.brokers:
            if broker.name == name:
                return broker
        raise TopologyError(f"topology {self.name}: {_unknown_broker(name, self.brokers)}")

    def edge(self, a: str, b: str) -> Edge:
        """Return the edge between two neighbours. Raises TopologyError if there is none."""
        ends = {self.broker(a).name, self.broker(b).name}
        for edge in self.edges:
            if edge.ends == ends:
                return edge
        raise TopologyError(f"topology {self.name}: {a} and {b} are not neighbours")

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the names of the adjacent brokers, in the order of `brokers`."""
        centre = self.broker(name).name
        adjacent = {end for edge in self.edges if centre in edge.ends for end in edge.ends}
        return tuple(b.name for b in self.brokers if b.name in adjacent and b.name != centre)

    def clients_at(self, name: str) -> tuple[str, ...]:
        """Return the names of the clients placed at a broker, in the order of `clients`."""
        centre = self.broker(name).name
        return tuple(client for client, broker in self.clients.items() if broker == centre)

    def graph(self) -> nx.Graph[str]:
        """Return a new graph: nodes with host and port, edges with delay_ms."""
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        for broker in self.brokers:
            graph.add_node(broker.name, host=broker.host, port=broker.port)
        for edge in self.edges:
            graph.add_edge(edge.a, edge.b, delay_ms=edge.delay_ms)
        return graph

    def path(self, a: str, b: str) -> tuple[str, ...]:
        """Return the brokers on the path from a to b, both included."""
        import networkx as nx

        return tuple(nx.shortest_path(self.graph(), self.broker(a).name, self.broker(b).name))

    def to_yaml(self) -> str:
        """Return YAML as a person would write it; `load` reads an equal Topology."""
        brokers = [broker.model_dump() for broker in self.brokers]
        edges = [edge.model_dump() if edge.delay_ms else [edge.a, edge.b] for edge in self.edges]
        data: dict[str, object] = {"name": self.name, "brokers": brokers, "edges": edges}
        if self.clients:
            data["clients"] = dict(self.clients)
        if self.client_delay_ms:
            data["client_delay_ms"] = self.client_delay_ms
        if self.services:
            data["services"] = list(self.services)
        if self.durability != "memory":
            data["durability"] = self.durability
        # default_flow_style=None: a line per broker and edge.
        return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=100)

    def to_json(self) -> str:
        """Return JSON with all fields, for programs; `load` reads an equal Topology."""
        return self.model_dump_json(indent=2)


def load(name_or_path: str | Path) -> Topology:
    """Return the topology of a name (see NAMES) or from a .yaml, .yml or .json file.

    Raises TopologyError, which names the file and the mistake in it, or lists the known names.
    """
    if name_or_path in NAMES:
        with resources.as_file(resources.files("topologies.data") / f"{name_or_path}.yaml") as file:
            return _from_file(file)
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and not path.suffix and path.name == name_or_path:
        raise TopologyError(
            f"unknown topology {_short(name_or_path)}{_did_you_mean(name_or_path, NAMES)}: "
            f"expected {', '.join(NAMES)}, or a file ({', '.join(text.SUFFIXES)})"
        )
    return _from_file(path)


def _from_file(path: Path) -> Topology:
    try:
        data = text.read(path)
        if data is None:
            raise TopologyError("empty")
        return Topology.model_validate(data)
    except TopologyError as error:
        raise TopologyError(f"{str(path)!r}: {error}") from None


# Each check returns its reason or None; the first reason is raised.


def _brokers_problem(brokers: Sequence[BrokerSpec]) -> str | None:
    if not brokers:
        return "brokers: expected at least one"
    if len(brokers) > MAX_BROKERS:
        return f"brokers: expected at most {MAX_BROKERS}, got {len(brokers)}"
    names: set[str] = set()
    listening: dict[tuple[str, int], str] = {}
    for broker in brokers:
        if broker.name in names:
            return f"two brokers are named {broker.name}"
        names.add(broker.name)
        if broker.port:
            first = listening.setdefault((broker.host.lower(), broker.port), broker.name)
            if first != broker.name:
                return f"brokers {first} and {broker.name} both listen at {broker.address}"
    return None


def _edges_problem(topology: Topology) -> str | None:
    adjacent: dict[str, list[str]] = {broker.name: [] for broker in topology.brokers}
    seen: set[frozenset[str]] = set()
    for edge in topology.edges:
        for end in (edge.a, edge.b):
            if end not in adjacent:
                return f"edge {edge}: {_unknown_broker(end, topology.brokers)}"
        if edge.a == edge.b:
            return f"edge {edge}: a broker cannot be its own neighbour"
        if edge.ends in seen:
            return f"duplicate edge {edge}"
        seen.add(edge.ends)
        adjacent[edge.a].append(edge.b)
        adjacent[edge.b].append(edge.a)

    root = topology.brokers[0].name
    reached = _reached(adjacent, root)
    cut_off = [name for name in adjacent if name not in reached]
    if not cut_off and len(topology.edges) == len(adjacent) - 1:
        return None
    return _cycle_problem(topology) or (
        f"broker {cut_off[0]} cannot be reached from {root}"
        + (f" (nor can {len(cut_off) - 1} more)" if len(cut_off) > 1 else "")
    )


def _services_problem(services: Sequence[str]) -> str | None:
    twice = [name for at, name in enumerate(services) if name in services[:at]]
    return f"services: {twice[0]} is listed twice" if twice else None


def _reached(adjacent: Mapping[str, Iterable[str]], root: str) -> set[str]:
    reached, pending = {root}, [root]
    while pending:
        for name in adjacent[pending.pop()]:
            if name not in reached:
                reached.add(name)
                pending.append(name)
    return reached


def _cycle_problem(topology: Topology) -> str | None:
    import networkx as nx

    try:
        steps = nx.find_cycle(topology.graph())
    except nx.NetworkXNoCycle:
        return None
    ring = [step[0] for step in steps]
    return f"the edges form a cycle, {'-'.join([*ring, ring[0]])}; expected a tree"


def _clients_problem(topology: Topology) -> str | None:
    known = {broker.name for broker in topology.brokers}
    for client, broker in topology.clients.items():
        if broker not in known:
            return f"client {client}: {_unknown_broker(broker, topology.brokers)}"
    return None


# The texts of errors.


def _unknown_broker(name: str, brokers: Sequence[BrokerSpec]) -> str:
    hint = _did_you_mean(name, [broker.name for broker in brokers])
    return f"unknown broker {_short(name)}{hint}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _given(data: object, field: str) -> str:
    """Return the text of a field, if it is short and printable."""
    value = data.get(field) if isinstance(data, Mapping) else None
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 64 else ""


def _short(value: object) -> str:
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 80
    return shortener.repr(value)


#: Texts for pydantic's error types, in the terms of a YAML file.
_REASONS = {
    "model_type": "should be a mapping of fields",
    "tuple_type": "should be a list",
    "dict_type": "should be a mapping",
    "int_parsing": "should be a whole number",
    "float_parsing": "should be a number",
}


def _readable(error: ValidationError, model: type[BaseModel]) -> str:
    """Return pydantic's errors as one line: field, reason, and the value found."""
    found = error.errors(include_url=False)
    lines = []
    for item in found[:MAX_ERRORS_SHOWN]:
        field = ".".join(str(part) for part in item["loc"])
        field = field if field.isprintable() else ascii(field)
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown field {field!r}{_did_you_mean(field, model.model_fields)}")
        elif item["type"] == "missing":
            lines.append(f"field {field!r} is missing")
        else:
            reason = _REASONS.get(item["type"], item["msg"])
            reason = reason.removeprefix("Value error, ").removeprefix("Input ")
            prefix = f"{field}: " if field else ""
            lines.append(f"{prefix}{reason}, not {_short(item['input'])}")
    if len(found) > len(lines):
        lines.append(f"and {len(found) - len(lines)} more")
    return "; ".join(lines)
