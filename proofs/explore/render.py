"""The story of a run that was explored, for people: who got what from whom, and what came of it.

Messages are put into words by their classes and fields, so that a new one can be told without
anybody having to write it down here; those that occur in every story have words of their own.
"""

from __future__ import annotations

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
    """Who is where, holds what, and is about to do what."""
    edges = ", ".join(f"{one}-{other}" for one, other in scenario.edges)
    yield f"brokers {edges or ', '.join(dict.fromkeys(scenario.homes.values()))}"
    for client, home in scenario.homes.items():
        held = [f"{kind}({format_filter(f)})" for who, kind, f in scenario.held if who == client]
        yield f"{client} at {home}" + (f" holds {', '.join(held)}" if held else "")
        role = scenario.role(client)
        for act in role.opening:
            yield f"    does {_act(act)}"
        for act in role.after:
            yield f"    then {_act(act)}"
        for on, steps, error, catches in role.reactions:
            does = f"fails: {error}" if error else ", ".join(map(_step, steps)) or "nothing"
            yield f"    on tcm({format_filter(on)}): {does}{' if it holds it' * catches}"
        if role.may_leave:
            yield "    may be gone at any moment"


def trace(result: Exploration) -> list[str]:
    """The moves that lead to the anomaly, one line each."""
    return [_move(result, state, move) for state, move in result.path]


def describe_run(result: Exploration) -> Iterator[str]:
    """The scene, the moves that lead to the anomaly, and what is wrong in the end."""
    for line in describe_scenario(result.scenario):
        yield f"  {line}"
    yield from describe_anomaly(result)


def describe_anomaly(result: Exploration) -> Iterator[str]:
    """The moves that lead to the anomaly, and what is wrong in the end."""
    yield f"anomaly after {len(result.path)} moves, and none after fewer:"
    for at, line in enumerate(trace(result), 1):
        yield f"{at:4}. {line}"
    for finding in result.findings:
        yield f"{finding.kind}: {finding.text}"


def _act(act: Action) -> str:
    match act:
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
    assert result.stage is not None
    network = result.stage.network
    frame, step = network.look(state, move)
    node = network.nodes[move.node]
    who = _name(node.hop)
    if move.urge == LEAVE:
        told = f"{who} is gone"
    elif move.urge:
        told = f"{who}: the deadline {move.urge} passes"
    else:
        assert frame is not None
        source = network.nodes[network.links[move.link][0]].hop
        told = f"{_name(source)} to {who}: {_frame(result, source, node.hop, frame)}"
    done = [line for record in step.records if (line := _record(record))]
    if fault := node.fault(step.state):
        done.append(fault)
    return told + (f"  [{'; '.join(done)}]" if done else "")


def _name(hop: str) -> str:
    return hop.removeprefix("@")


def _record(record: Record) -> str:
    match record.kind:
        case "apply" | "undo":
            verb = "stores" if "+" in record.outcome.split() else "takes out"
            if "+" not in record.outcome.split() and not record.outcome.startswith("-"):
                verb = "has nothing to change for"
            return f"{verb} {record.client}'s {record.op_kind}({record.filter})"
        case "match":
            hops = ", ".join(map(_name, record.dests))
            return f"routes {record.op_kind}({record.filter}) to {hops or 'nobody'}"
        case "decide":
            return f"{record.tx} is {record.outcome} here"
        case "deliver":
            return f"hands ({record.filter}) to {', '.join(map(_name, record.dests))}"
    return ""


def _frame(result: Exploration, source: Hop, dest: Hop, frame: bytes) -> str:
    if frame == GONE:
        return "it has gone"
    message = decode(frame)
    if not isinstance(message, EngineMessage):
        return message_text(message)
    if is_client(source):
        return message_text(from_client.decode(message.body))
    if is_client(dest):
        return message_text(to_client.decode(message.body))
    return message_text(_codec(result, message.engine).decode(message.body))


def _codec(result: Exploration, engine: str) -> Any:
    """What the brokers' engines of that name talk with: their own module's, or a parent's."""
    assert result.stage is not None
    node = next(n for n in result.stage.network.nodes if isinstance(n, BrokerNode))
    made = type(thaw(node.cores[0].image).engines[engine])
    for kind in made.__mro__:
        codec = getattr(sys.modules[kind.__module__], "codec", None)
        if codec is not None:
            return codec
    raise AssertionError(f"{made} has no codec")


def message_text(message: Any) -> str:
    """A message in words."""
    match message:
        case Pub():
            hidden = f" hiding {_value(message.hidden)}" if message.hidden else ""
            return f"pub({format_publication(message.point)}){hidden}"
        case Operation():
            return f"{message.client}'s {message.kind}({format_filter(message.filter)})"
        case Done(_, code):
            return f"refused: {code}" if code else "done"
        case Step():
            return _step(message)
    said = [type(message).__name__.lower()]
    fields = msgspec.structs.fields(message)
    for field in fields:
        value = getattr(message, field.name)
        if field.name in ("req", "age", "deadline_s", "number", "seq", "life", "payload", "reason"):
            continue
        if field.name == "tx":
            said.insert(1, tx_text(value))
        elif field.name == "committed":
            said.append("commit" if value else "abort")
        elif not field.required and value == field.default:
            continue
        elif isinstance(value, Operation | Pub | Step):
            said.append(message_text(value))
        elif value not in (0, "", (), {}):
            said.append(f"{field.name}={_value(value)}")
    return " ".join(said)


def _value(value: Any) -> str:
    if isinstance(value, Filter):
        return format_filter(value)
    if isinstance(value, msgspec.Struct):
        return message_text(value)
    if isinstance(value, Effective):
        return _value((value.kind, value.filter))  # As elsewhere, without numbers.
    if isinstance(value, tuple):
        if [type(part) for part in value] == [str, int, int]:
            return tx_text(value)
        return "(" + ", ".join(map(_value, value)) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(v)}" for key, v in value.items()) + "}"
    return str(value)
