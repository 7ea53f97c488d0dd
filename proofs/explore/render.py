"""An explored run as text: which node received which message from which, and what it did.

Messages are described by their classes and fields, so a new message needs no text here; those that
occur in every run have texts of their own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from overlay.filters import Filter
from overlay.messages import Done, EngineMessage, Hop, Operation, Pub, is_client
from overlay.notation import format_filter, format_publication
from overlay.trace import Record
from overlay.wire.codec import decode
from padres_tx.client_messages import Effective, Step, from_client, to_client, tx_text
from proofs.explore.explorer import Exploration
from proofs.explore.network import NetworkMove, State
from proofs.explore.nodes import GONE, LEAVE, BrokerNode
from proofs.explore.scenario import Scenario
from proofs.explore.scripted_clients import (
    Action,
    DynamicTransaction,
    PlainOperation,
    PlainPublication,
    StaticTransaction,
)
from proofs.explore.snapshot import thaw


def describe_scenario(scenario: Scenario) -> Iterator[str]:
    """The brokers and clients of a scenario, what each client holds, and its script."""
    edges = ", ".join(f"{one}-{other}" for one, other in scenario.edges)
    yield f"brokers {edges or ', '.join(dict.fromkeys(scenario.homes.values()))}"
    for client, home in scenario.homes.items():
        held = [f"{kind}({format_filter(f)})" for who, kind, f in scenario.held if who == client]
        yield f"{client} at {home}" + (f" holds {', '.join(held)}" if held else "")
        script = scenario.script(client)
        for action in script.opening:
            yield f"    does {_act(action)}"
        for action in script.after:
            yield f"    then {_act(action)}"
        for on, steps, error, catches in script.reactions:
            does = f"fails: {error}" if error else ", ".join(map(_step, steps)) or "nothing"
            yield f"    on tcm({format_filter(on)}): {does}{' if it holds it' * catches}"
        if script.may_leave:
            yield "    may leave at any moment"


def trace(result: Exploration) -> list[str]:
    """The moves that lead to the anomaly, one line each."""
    return [_move(result, state, move) for state, move in result.path]


def describe_run(result: Exploration) -> Iterator[str]:
    """The scenario, the moves that lead to the anomaly, and the anomaly."""
    for line in describe_scenario(result.scenario):
        yield f"  {line}"
    yield from describe_anomaly(result)


def describe_anomaly(result: Exploration) -> Iterator[str]:
    """The moves that lead to the anomaly, and the anomaly."""
    yield f"anomaly after {len(result.path)} moves, none after fewer:"
    for at, line in enumerate(trace(result), 1):
        yield f"{at:4}. {line}"
    for finding in result.findings:
        yield f"{finding.kind}: {finding.text}"


def _act(action: Action) -> str:
    match action:
        case PlainPublication(point):
            return f"pub({format_publication(point)})"
        case PlainOperation(kind, filter):
            return f"{kind}({format_filter(filter)})"
        case StaticTransaction(engine, steps, end) | DynamicTransaction(engine, steps, end):
            return f"in {engine}: {', '.join(map(_step, steps))}; {end}"


def _step(step: Step) -> str:
    about = format_publication(step.point or {}) if step.filter is None else None
    if about is None:
        assert step.filter is not None
        about = format_filter(step.filter)
    after = f" after {','.join(map(str, step.after))}" if step.after else ""
    return f"{step.client} {step.kind}({about}){after}"


# --- moves ---


def _move(result: Exploration, state: State, move: NetworkMove) -> str:
    assert result.prepared is not None
    network = result.prepared.network
    frame, step = network.look(state, move)
    node = network.nodes[move.node]
    name = _name(node.hop)
    if move.own_move == LEAVE:
        text = f"{name} leaves"
    elif move.own_move:
        text = f"{name}: the deadline {move.own_move} passes"
    else:
        assert frame is not None
        source = network.nodes[network.links[move.link][0]].hop
        text = f"{_name(source)} to {name}: {_frame(result, source, node.hop, frame)}"
    done = [line for record in step.records if (line := _record(record))]
    if fault := node.fault(step.state):
        done.append(fault)
    return text + (f"  [{'; '.join(done)}]" if done else "")


def _name(hop: str) -> str:
    return hop.removeprefix("@")


def _record(record: Record) -> str:
    match record.kind:
        case "apply" | "undo":
            verb = "stores" if "+" in record.outcome.split() else "removes entries for"
            if "+" not in record.outcome.split() and not record.outcome.startswith("-"):
                verb = "changes nothing for"
            return f"{verb} {record.client}'s {record.op_kind}({record.filter})"
        case "match":
            hops = ", ".join(map(_name, record.dests))
            return f"routes {record.op_kind}({record.filter}) to {hops or 'no hop'}"
        case "decide":
            return f"{record.tx} is {record.outcome} here"
        case "deliver":
            return f"delivers ({record.filter}) to {', '.join(map(_name, record.dests))}"
    return ""


def _frame(result: Exploration, source: Hop, dest: Hop, frame: bytes) -> str:
    if frame == GONE:
        return "it has left"
    message = decode(frame)
    if not isinstance(message, EngineMessage):
        return message_text(message)
    if is_client(source):
        return message_text(from_client.decode(message.body))
    if is_client(dest):
        return message_text(to_client.decode(message.body))
    return message_text(_codec(result, message.engine).decode(message.body))


def _codec(result: Exploration, engine: str) -> Any:
    """The codec of the brokers' engine of that name, from its own module or a parent's."""
    assert result.prepared is not None
    node = next(n for n in result.prepared.network.nodes if isinstance(n, BrokerNode))
    made = type(thaw(node.cores[0].image).engines[engine])
    for kind in made.__mro__:
        codec = getattr(sys.modules[kind.__module__], "codec", None)
        if codec is not None:
            return codec
    raise AssertionError(f"{made} has no codec")


def message_text(message: Any) -> str:
    """A message as text."""
    match message:
        case Pub():
            hidden = f" stamped {_value(message.hidden)}" if message.hidden else ""
            return f"pub({format_publication(message.point)}){hidden}"
        case Operation():
            return f"{message.client}'s {message.kind}({format_filter(message.filter)})"
        case Done(_, code):
            return f"refused: {code}" if code else "done"
        case Step():
            return _step(message)
    parts = [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(message).__name__).lower()]
    fields = msgspec.structs.fields(message)
    for field in fields:
        value = getattr(message, field.name)
        if field.name in ("req", "age", "deadline_s", "number", "seq", "life", "payload", "reason"):
            continue
        if field.name == "tx":
            parts.insert(1, tx_text(value))
        elif field.name == "committed":
            parts.append("commit" if value else "abort")
        elif not field.required and value == field.default:
            continue
        elif isinstance(value, Operation | Pub | Step):
            parts.append(message_text(value))
        elif value not in (0, "", (), {}):
            parts.append(f"{field.name}={_value(value)}")
    return " ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, Filter):
        return format_filter(value)
    if isinstance(value, msgspec.Struct):
        return message_text(value)
    if isinstance(value, Effective):
        return _value((value.kind, value.filter))  # Without numbers, as elsewhere.
    if isinstance(value, tuple):
        if [type(part) for part in value] == [str, int, int]:
            return tx_text(value)
        return "(" + ", ".join(map(_value, value)) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(v)}" for key, v in value.items()) + "}"
    return str(value)
