"""The models that TLC checks: each specification in some small overlays, and without each rule.

An instance is a module in `proofs/tla` that extends a specification and defines its constants
(MCNbr for Nbr, and so on). With all rules every property holds in every instance. A control leaves
one rule out and names the property that TLC must find violated. So every rule is shown to be
needed, and every property is shown to be able to fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from proofs.solvers.tlc import Checked, check, configuration


class Specification(NamedTuple):
    """A specification, its constants (except Rules) and its invariants."""

    name: str
    constants: str
    invariants: tuple[str, ...]


D_TX: Final = Specification(
    "DTx",
    "Nbr Txs Edge Age Ops DoomAt Pubs Home Reach Plains From Touch Cause Takes Leaves",
    (
        "OneOutcome",
        "SnapshotAgree",
        "InOrderEverywhere",
        "Complete",
        "OneSide",
        "Forwards",
        "Serializable",
        "AtRest",
    ),
)

S_TX: Final = Specification(
    "STx",
    "Nbr Clients Home Coord Subs Ads Steps Plain Refusing Readers Expected",
    (
        "OneOutcome",
        "NobodyOverruled",
        "Converged",
        "Everywhere",
        "NotInPart",
        "AtRest",
        "Delivered",
    ),
)

D_TX_NI: Final = Specification(
    "DTxNI",
    "Nbr Clients Home Coord Subs Ads InTx Plain Holding",
    ("Undone", "Converged", "NoGhost"),
)

DURABLE_LINK: Final = Specification(
    "DurableLink",
    "Says Crashes Losses Breaks",
    ("OnceInOrder", "AcknowledgedKept", "CountsAgree", "Complete"),
)

SPECIFICATIONS: Final = (D_TX, S_TX, D_TX_NI, DURABLE_LINK)


class TLCModel(NamedTuple):
    """An instance of a specification; a control also names the rule that is left out."""

    spec: Specification
    instance: str
    #: The rule that is left out, and the property that must fail then.
    without: str = ""
    violates: str = ""
    #: The temporal property that is checked instead of the invariants, if any.
    ends: str = ""

    @property
    def text(self) -> str:
        return f"{self.instance} without {self.without!r}" if self.without else self.instance


def run(model: TLCModel) -> Checked:
    """Check a model with TLC. Raises what `tlc.check` raises."""
    invariants = (model.violates,) if model.violates else model.spec.invariants
    properties: tuple[str, ...] = ()
    if model.ends:
        invariants, properties = (), (model.ends,)
    rules = f'AllRules \\ {{"{model.without}"}}' if model.without else "AllRules"
    control = f"---- MODULE Control ----\nEXTENDS {model.instance}\nMCRules == {rules}\n====\n"
    config = configuration(model.spec.constants.split(), "MCRules", invariants, properties)
    return check("Control", config, {"Control": control})


def _controls(spec: Specification, instance: str, *controls: str) -> Iterable[TLCModel]:
    yield TLCModel(spec, instance)
    for control in controls:
        without, _, violates = control.partition(": ")
        yield TLCModel(spec, instance, without, violates)


MODELS: Final = (
    *_controls(D_TX, "DTxEvents", "stamp: OneSide", "stamp: Forwards", "forget: OneSide"),
    *_controls(D_TX, "DTxHalf", "under way: Serializable"),
    *_controls(D_TX, "DTxPlain", "since: Serializable", "hold: Serializable"),
    *_controls(D_TX, "DTxFork"),
    *_controls(D_TX, "DTxAttract"),
    *_controls(
        D_TX,
        "DTxCrossing",
        "undecided: SnapshotAgree",
        "all vote: SnapshotAgree",
        "owner: OneOutcome",
    ),
    *_controls(
        D_TX,
        "DTxSkew",
        "both ways: Serializable",
        "outside: Serializable",
        "die: AtRest",
    ),
    *_controls(D_TX, "DTxLeave", "meets held: Serializable", "held from: Serializable"),
    *_controls(
        D_TX,
        "DTxDispatch",
        "fifo: InOrderEverywhere",
        "answers: Complete",
        "nested: InOrderEverywhere",
    ),
    *_controls(D_TX, "DTxAdvertise", "answers: InOrderEverywhere", "nested: InOrderEverywhere"),
    TLCModel(D_TX, "DTxDispatch", ends="Ends"),
    *_controls(
        S_TX,
        "STxHandover",
        "all answer: NobodyOverruled",
        "owner: OneOutcome",
        "refuse: AtRest",
        "order: Delivered",
    ),
    *_controls(S_TX, "STxAdvertise", "complete: Delivered"),
    *_controls(S_TX, "STxCrossing", "drops follow: Converged"),
    *_controls(S_TX, "STxTakenBack", "own follows: Converged"),
    *_controls(
        S_TX,
        "STxOutside",
        "outside: Everywhere",
        "outside: NotInPart",
        "nested: Everywhere",
        "nested: NotInPart",
        "settled: NotInPart",
    ),
    *_controls(
        D_TX_NI,
        "DTxNISubscribe",
        "backwards: NoGhost",
        "what changed: Undone",
        "reserved: Converged",
        "not begun: NoGhost",
    ),
    *_controls(D_TX_NI, "DTxNICrossing"),
    *_controls(D_TX_NI, "DTxNIAdvertise", "in flight: Converged"),
    *_controls(
        DURABLE_LINK,
        "DurableLinkCrash",
        "sync: AcknowledgedKept",
        "count: AcknowledgedKept",
        "lives: CountsAgree",
        "outbox: CountsAgree",
        "once: OnceInOrder",
        "wait: OnceInOrder",
        "prefix: OnceInOrder",
        "kept: CountsAgree",
        "resend: Complete",
    ),
    *_controls(DURABLE_LINK, "DurableLinkLoss"),
)
