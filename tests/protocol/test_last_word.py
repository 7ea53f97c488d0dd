"""A client's last word decides, also when what it has said before has to wait."""

from __future__ import annotations

import pytest

from overlay.messages import Done, Operation
from padres_tx.client_messages import (
    Begin,
    Commit,
    Ended,
    Operate,
    Step,
    engine_message,
    from_client,
)
from tests.protocol.one_broker import OneBroker, of_kind
from tests.protocol.steps import box

P = box(class_="p")


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
def test_a_transaction_does_not_come_before_what_its_client_said_before(engine: str) -> None:
    """The plain operation is done later, under a later number, and would have the last word."""
    one = OneBroker(engine, neighbours=())
    one.here("C")
    one.holds("C", "sub", P)
    # An undecided transaction reserves words of C, and so C's next plain ones have to wait.
    for message in (
        Begin(("C", 0, 50), 30.0),
        Operate(("C", 0, 50), 0, 1, Step("C", "usub", box(class_="p", x=(0, 1)))),
    ):
        one.send("@C", engine_message("d-tx-ni", from_client.encode(message)))
    assert not one.send("@C", Operation(9, "sub", "C", 0, box(class_="p", x=(1, 2))))
    step = Step("C", "usub", box(class_="p", x=2))
    if engine == "s-tx":
        _, said = one.submit("C", step)
    else:
        _, said = one.begun("C", step, commit=True)
    [ended] = of_kind(said, Ended, "@C")[:1]
    assert not ended.committed and ended.code == "conflict"
    said = one.send("@C", engine_message("d-tx-ni", from_client.encode(Commit(("C", 0, 50)))))
    assert [(done.req, done.code) for done in of_kind(said, Done, "@C")] == [(9, "")]
    if engine == "s-tx":
        _, said = one.submit("C", step)
    else:
        _, said = one.begun("C", step, commit=True)
    assert of_kind(said, Ended, "@C")[0].committed
    assert one.wanted_by(class_="p", x=2) == []
    assert one.wanted_by(class_="p", x=1.5) == ["@C"]
