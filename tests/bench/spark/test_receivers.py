"""Who receives a tcm, by a broker's records: not for events only, and those whom it names."""

from __future__ import annotations

import pytest

from bench.spark.replay import ReplayInput, replay
from tests.bench.spark.test_shipped import step


def sub(seq: int, client: str, outcome: str) -> ReplayInput:
    return step(
        seq,
        "apply",
        op_id=f"{client}#{seq}",
        op_kind="sub",
        client=client,
        filter="[x,>=,3]",
        source=f"@{client}",
        outcome=outcome,
    )


def match(kind: str, dests: list[str], outcome: str = "") -> ReplayInput:
    whose = {"op_id": "E:1", "client": "E", "source": "@E", "filter": "[x,4]"}
    return step(9, "match", op_kind=kind, dests=dests, outcome=outcome, **whose)


@pytest.mark.parametrize(
    ("matched", "is_right"),
    [
        (match("tcm", ["@A"]), True),
        (match("tcm", ["@A", "@B"]), False),
        (match("tcm", []), False),
        (match("pub", ["@A", "@B"]), True),
        (match("pub", ["@A"]), False),
        (match("tcm", ["@A"], "to A"), True),
        (match("tcm", [], "to B"), True),
        (match("tcm", ["@A"], "to B"), False),
    ],
)
def test_where_a_tcm_should_have_gone(matched: ReplayInput, is_right: bool) -> None:
    """A takes tcms; B did, and is subscribed for events only since."""
    steps = [sub(1, "A", "+"), sub(2, "B", "+"), sub(3, "B", "+ events"), matched]
    verdicts = [
        found
        for found in replay(steps, versioned=["d-tx"], replicated=["s-tx"])
        if found.what == "verdict"
    ]
    assert (verdicts == []) == is_right
