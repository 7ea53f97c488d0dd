"""The spec of an experiment: a YAML file, validated, and expanded into runs.

    name: mine
    topologies: [three, my-tree.yaml]
    engines: [d-tx, s-tx]
    workload: dispatching
    transactions: 200
    concurrency: [1, 5]
    delay_ms: {edges: 5, clients: 5}
    repetitions: 3
    seed: 7
    quick: {transactions: 20, repetitions: 1}

Lists are swept: every topology with every engine, and so on. `quick` changes fields for a short
version. Validation is strict: an unknown field is an error, and every error is one line that names
the file and the field.

The paper's experiments are files in `specs/`, known by their names. How anything is run must not be
known here.
"""

from __future__ import annotations

import difflib
import itertools
import random
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bench.experiments import workloads
from bench.experiments.roles import Workload
from bench.experiments.workloads import WorkloadError
from padres_tx import UnknownEngine, registry
from padres_tx.client.transactions import OPEN_LIMIT
from padres_tx.engines.bl_wait import WAIT_LIMIT_S
from topologies import Topology, TopologyError
from topologies import load as load_topology
from topologies.model import MAX_DELAY_MS
from topologies.text import SUFFIXES, read

#: The experiments of Section 7, in the order of their figures (5 to 9).
NAMES = ("base", "overlay_size", "concurrency", "clients", "regular_traffic")

#: A spec with more runs is a mistake.
MAX_RUNS = 10_000

#: The most scenario instances, each with its clients, that two cores have been seen to run.
MAX_INSTANCES = 250

#: As many as a person corrects at a time.
MAX_ERRORS_SHOWN = 3

#: The step of the paper's calibration of BL-WAIT.
PAPER_STEP_MS = 50.0


class SpecError(Exception):
    """An invalid spec; the message is one line, which names the file and the field."""


T = TypeVar("T")


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("should have at least one entry")
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"duplicate entry {value!r}")
    return values


#: One value, or a list that is swept.
Many: TypeAlias = Annotated[tuple[T, ...], BeforeValidator(_as_list), AfterValidator(_each_once)]

Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
DelayMs: TypeAlias = Annotated[float, Field(ge=0, le=MAX_DELAY_MS, allow_inf_nan=False)]


def _wait(value: object) -> str | float:
    if value in ("smallest", "paper"):
        return str(value)
    try:
        wait_ms = float(str(value))
    except ValueError:
        wait_ms = 0.0
    if not 0 < wait_ms <= WAIT_LIMIT_S * 1000:
        most = WAIT_LIMIT_S * 1000
        raise ValueError(
            f"invalid wait {value!r}: expected smallest, paper, or a number above 0 up to {most:g}"
        )
    return wait_ms


#: The smallest wait that works, the smallest in the paper's steps, or so many milliseconds.
Wait: TypeAlias = Annotated[Literal["smallest", "paper"] | float, PlainValidator(_wait)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Delays(_Model):
    """Of each link between brokers, and of each client's; by default those of the topology."""

    edges: DelayMs | None = None
    clients: DelayMs | None = None

    @model_validator(mode="before")
    @classmethod
    def _same_for_all(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping) else {"edges": data, "clients": data}


class Spec(_Model):
    """One experiment."""

    name: Name
    title: str = ""
    #: The paper's figure that it belongs to, if any.
    figure: int = Field(default=0, ge=0)
    #: Names, or files, looked for beside the spec.
    topologies: Many[str]
    engines: Many[str]
    #: A name (`workloads`) or "package.module:Class"; `options` are its own.
    workload: str = "dispatching"
    options: dict[str, Any] = {}
    #: Further options by name, each set of which is run.
    variants: dict[Name, dict[str, Any]] = {}
    #: Of each coordinator: in all, and at once.
    transactions: Count
    concurrency: Many[Annotated[int, Field(ge=1, le=OPEN_LIMIT)]] = (1,)
    #: Instances of the scenario, each with its own clients and event space.
    instances: Many[Annotated[int, Field(ge=1, le=MAX_INSTANCES)]] = (1,)
    delay_ms: Delays = Delays()
    #: Clients at random brokers, different in each repetition and the same for all engines; or as
    #: far apart as possible.
    placement: Literal["random", "spread"] = "random"
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: int = 1
    #: Whether brokers write traces, which costs time.
    trace: bool = False
    #: For engines that wait.
    bl_wait_ms: Many[Wait] = ("smallest",)
    #: How many transactions in a row have to succeed with a wait that works.
    bl_wait_trials: Count = 100
    #: The fields that differ in the short version.
    quick: dict[str, Any] = {}

    _topologies: tuple[Topology, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _one_topology(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            # A field without a value is not given.
            data = {field: value for field, value in data.items() if value is not None}
            if "topology" in data:
                if "topologies" in data:
                    raise _Wrong("topology: cannot be combined with topologies")
                data["topologies"] = data.pop("topology")
        return data

    @field_validator("engines")
    @classmethod
    def _known_engines(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            for name in names:
                registry.load(name)
        except UnknownEngine as error:
            raise ValueError(str(error)) from None
        return names

    @field_validator("workload")
    @classmethod
    def _known_workload(cls, name: str) -> str:
        try:
            workloads.load(name)
        except WorkloadError as error:
            raise ValueError(str(error)) from None
        return name

    @model_validator(mode="after")
    def _load_topologies(self, info: ValidationInfo) -> Self:
        directory = info.context or Path()
        found = [_topology(name, directory) for name in self.topologies]
        names = [topology.name for topology in found]
        for name in names:
            if names.count(name) > 1:
                raise _Wrong(f"topologies: two have the name {name}")
        edges_ms, clients_ms = self.delay_ms.edges, self.delay_ms.clients
        self._topologies = tuple(_delayed(each, edges_ms, clients_ms) for each in found)
        return self

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        workload = self.workload_class
        if not self.variants:
            _options(workload, self.options, "options", self.transactions)
        for name, variant in self.variants.items():
            _options(workload, self.options | variant, f"variants.{name}", self.transactions)
        runs = sum(1 for _ in self.combinations())
        if runs > MAX_RUNS:
            raise _Wrong(f"too many runs: {runs}, expected at most {MAX_RUNS}")
        return self

    @property
    def workload_class(self) -> type[Workload]:
        return workloads.load(self.workload)

    def combinations(self) -> Iterator[Combination]:
        """Every run, in an order in which engines that are compared come one after the other."""
        for repetition, topology, instances, concurrency, series, variant in itertools.product(
            range(1, self.repetitions + 1),
            self._topologies,
            self.instances,
            self.concurrency,
            self._series(),
            tuple(self.variants) or ("",),
        ):
            yield Combination(self, topology, *series, concurrency, instances, variant, repetition)

    def _series(self) -> Iterator[tuple[str, Wait | None]]:
        for engine in self.engines:
            if registry.load(engine).broker is None:
                for wait in self.bl_wait_ms:
                    yield engine, wait
            else:
                yield engine, None

    def as_data(self) -> dict[str, Any]:
        """For the manifest: the version that is run."""
        return self.model_dump(mode="json", exclude={"quick"})


class Combination(NamedTuple):
    """The combination of one run."""

    spec: Spec
    topology: Topology
    engine: str
    #: None for an engine that does not wait.
    wait: Wait | None
    concurrency: int
    instances: int
    variant: str
    repetition: int

    @property
    def series(self) -> str:
        """The engine, and how its wait is chosen."""
        if self.wait is None:
            return self.engine
        wait = self.wait if isinstance(self.wait, str) else f"{self.wait:g}ms"
        return f"{self.engine}-{wait}"

    @property
    def run_id(self) -> str:
        parts = [self.spec.name, self.topology.name, self.series]
        parts += [f"c{self.concurrency}", f"i{self.instances}", self.variant]
        return "-".join([part for part in parts if part] + [f"r{self.repetition}"])

    @property
    def seed(self) -> int:
        """The same for all engines and variants, so that they have the same placement."""
        about = (self.spec.seed, self.topology.name, self.instances, self.repetition)
        return random.Random(repr(about)).getrandbits(31)

    @property
    def options(self) -> Any:
        """The workload's options, as its own model."""
        variant = self.spec.variants.get(self.variant, {})
        return self.spec.workload_class.Options.model_validate(self.spec.options | variant)


# --- reading ------------------------------------------------------------------------------------


def load(name_or_path: str | Path, *, quick: bool = False, **changes: Any) -> Spec:
    """The spec of a name (see NAMES) or in a .yaml, .yml or .json file, with some fields changed.

    Raises SpecError.
    """
    if name_or_path in NAMES:
        file = resources.files("bench.experiments") / "specs" / f"{name_or_path}.yaml"
        with resources.as_file(file) as path:
            return _from_file(path, changes, quick=quick)
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and not path.suffix and path.name == name_or_path:
        hint = _did_you_mean(name_or_path, NAMES)
        raise SpecError(
            f"unknown experiment {name_or_path!r}{hint}: expected one of {', '.join(NAMES)}, "
            f"or a path that ends in {', '.join(SUFFIXES)}"
        )
    return _from_file(path, changes, quick=quick)


def _from_file(path: Path, changes: Mapping[str, Any], *, quick: bool) -> Spec:
    try:
        if path.suffix.lower() not in SUFFIXES:
            raise SpecError(f"expected a file name that ends in {', '.join(SUFFIXES)}")
        data = read(path)
        if not isinstance(data, Mapping):
            raise SpecError("should be a mapping of fields")
        return parse(data, path.parent, quick=quick, **changes)
    except (SpecError, TopologyError) as error:
        raise SpecError(f"{str(path)!r}: {error}") from None


def parse(
    data: Mapping[str, Any], directory: Path = Path(), *, quick: bool = False, **changes: Any
) -> Spec:
    """The spec in plain data, with some fields changed, in either version; topology files are
    searched for in the directory.

    Raises SpecError. Both versions are validated, whichever is returned.
    """
    full = _validated(data, directory)
    for fixed in ("name", "quick"):
        if fixed in full.quick:
            raise SpecError(f"quick: {fixed}: cannot differ in the short version")
    try:
        short = _validated(_merged(data, full.quick), directory)
    except SpecError as error:
        raise SpecError(f"quick: {error}") from None
    chosen = _merged(data, full.quick) if quick else data
    return _validated(_merged(chosen, changes), directory) if changes else short if quick else full


def _validated(data: Mapping[str, Any], directory: Path) -> Spec:
    try:
        return Spec.model_validate(data, context=directory)
    except ValidationError as error:
        raise SpecError(_readable(error)) from None
    except _Wrong as error:
        raise SpecError(str(error)) from None


def _merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The data with changes; a mapping is changed field by field, anything else as a whole."""
    merged = dict(data)
    if "topology" in changes or "topologies" in changes:
        merged.pop("topology", None)
        merged.pop("topologies", None)
    for field, value in changes.items():
        old = merged.get(field)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = {**old, **value}
        merged[field] = value
    return merged


class _Wrong(Exception):
    """A field that conflicts with others. Not a ValueError, so that pydantic lets it pass."""


def _topology(name: str, directory: Path) -> Topology:
    beside = directory / name
    try:
        return load_topology(beside if Path(name).suffix else name)
    except TopologyError as error:
        raise _Wrong(f"topologies: {error}") from None


def _delayed(topology: Topology, edges_ms: float | None, clients_ms: float | None) -> Topology:
    changes: dict[str, Any] = {}
    if edges_ms is not None:
        changes["edges"] = tuple(
            edge.model_copy(update={"delay_ms": edges_ms}) for edge in topology.edges
        )
    if clients_ms is not None:
        changes["client_delay_ms"] = clients_ms
    return topology.model_copy(update=changes)


def _options(
    workload: type[Workload], data: Mapping[str, Any], field: str, transactions: int
) -> None:
    try:
        options = workload.Options.model_validate(data)
    except ValidationError as error:
        raise _Wrong(_readable(error, f"{field}.", workload.Options)) from None
    problem = workload.problem(transactions, options)
    if problem:
        raise _Wrong(f"transactions: {problem}, not {transactions}")


#: Messages in terms of YAML, for those of pydantic.
_PLAIN_WORDS = {
    "model_type": "should be a mapping of fields",
    "dict_type": "should be a mapping",
    "int_parsing": "should be a whole number",
    "float_parsing": "should be a number",
    "bool_parsing": "should be true or false",
}


def _readable(error: ValidationError, prefix: str = "", model: type[BaseModel] = Spec) -> str:
    """One line for pydantic's errors: field, reason, and the given value."""
    lines: list[str] = []
    found = error.errors(include_url=False)
    for item in found[:MAX_ERRORS_SHOWN]:
        field = prefix + ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            hint = _did_you_mean(str(item["loc"][-1]), model.model_fields)
            lines.append(f"unknown field {field!r}{hint}")
        elif item["type"] == "missing":
            lines.append(f"field {field!r} is missing")
        elif item["type"] == "value_error":  # One of ours, which is complete.
            lines.append(f"{field.rstrip('.')}: {item['msg'].removeprefix('Value error, ')}")
        else:
            reason = _PLAIN_WORDS.get(item["type"], item["msg"])
            reason = reason.removeprefix("Input ").removeprefix("String ")
            lines.append(f"{field}: {reason}, not {reprlib.repr(item['input'])}")
    if len(found) > len(lines):
        lines.append(f"and {len(found) - len(lines)} more")
    return "; ".join(lines)


def _did_you_mean(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
