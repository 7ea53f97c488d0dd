"""A random run as text: what was planned, and how each transaction ended."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.notation import format_filter, format_publication
from padres_tx.client_messages import tx_text
from proofs.sim.program import RESTART, PlannedOperation, RandomTransaction
from proofs.sim.random_run import RandomRun


def describe(run: RandomRun) -> Iterator[str]:
    """Describe a run line by line, after it was carried out."""
    program = run.program
    edges = ", ".join(f"{one}-{other}" for one, other in sorted(program.tree.edges))
    yield f"brokers {edges or 'B1'}"
    for client, edge in program.edges.items():
        held = [format_filter(filter) for who, filter in program.held if who == client]
        yield f"{client} at {edge}" + (f" subscribes {' and '.join(held)}" if held else "")
    for transaction in program.transactions:
        yield from _transaction(transaction)
    for at_ms, op in program.plain:
        yield f"{at_ms} ms: {_op(op)}, plain"
    if program.handovers is not None:
        yield from _stream(run)
    for fault in program.faults:
        if fault.kind in ("link-cut", "partition"):
            yield f"{fault.at_ms} ms: {'-'.join(fault.where)} is cut for {fault.outage_ms} ms"
        elif fault.kind == RESTART:
            back = f", its clients come back {fault.outage_ms} ms later" if fault.outage_ms else ""
            yield f"{fault.at_ms} ms: {fault.where[0]} is restarted{back}"
        else:
            client, edge = fault.where
            back = f", back at {edge} {fault.outage_ms} ms later" if fault.outage_ms else ""
            yield f"{fault.at_ms} ms: {client} crashes{back}"
    for tx, transaction, _ in run.attempts:
        ended = run.world.ended.get(tx)
        if ended is None:
            outcome = "its coordinator never learned the outcome"
        elif ended.committed:
            outcome = "committed"
        else:
            outcome = f"aborted ({ended.code}: {ended.reason})"
        yield f"{tx_text(tx)}, {transaction.engine}: {outcome}"


def _transaction(transaction: RandomTransaction) -> Iterator[str]:
    how = transaction.ending
    if how == "abort":
        how = f"{transaction.spoiler} aborts it {transaction.patience_ms} ms later"
    order = ", each client asks the next" if transaction.nested else ""
    yield (
        f"{transaction.at_ms} ms: {transaction.coordinator} begins a {transaction.engine}"
        f" ({how}, {transaction.attempts} attempts{order})"
    )
    for at, op in enumerate(transaction.ops):
        after = f", after {', '.join(map(str, transaction.after[at]))}" if at else ""
        yield f"    {at}: {_op(op)}{after}"


def _stream(run: RandomRun) -> Iterator[str]:
    handovers = run.program.handovers
    assert handovers is not None
    workers = " and ".join(handovers.workers)
    yield (
        f"{workers} hand a stream to each other {len(handovers.pauses_ms)} times"
        f" ({handovers.engine}), coordinated by {handovers.coordinator};"
        f" pauses of {', '.join(map(str, handovers.pauses_ms))} ms"
    )
    if handovers.takes:
        takes = (f"{who} at {at_ms} ms for {taker}" for at_ms, who, taker in handovers.takes)
        yield f"    taken from its owner: {', '.join(takes)}"
    if handovers.events:
        events = ", ".join(f"{publisher} at {at_ms} ms" for at_ms, publisher in handovers.events)
        yield f"    events: {events}"


def _op(op: PlannedOperation) -> str:
    text = format_publication(op.what) if op.kind == "pub" else format_filter(op.what)
    return f"{op.client} {op.kind} {text}"
