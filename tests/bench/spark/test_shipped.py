"""What executors are sent is enough for them: no package of ours, and nothing but PySpark's own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

from bench.spark import history, reads, tables, traces
from bench.spark.replay import ReplayInput, ReplayResult, replay
from bench.spark.shipped import archive

#: An executor without site directories, so without what is installed there in development mode;
#: only its PySpark, and what was shipped.
EXECUTOR = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import pickle
function, arguments = pickle.loads(open(sys.argv[3], "rb").read())
found = function(*arguments)
print(list(found))
packages = ("overlay", "padres_tx", "bench")
ours = [m for name, m in sys.modules.items() if name.partition(".")[0] in packages]
assert all(module.__file__.startswith(sys.argv[1]) for module in ours), ours
assert "msgspec" not in sys.modules
"""


def step(seq: int, kind: str, **fields: Any) -> ReplayInput:
    values: dict[str, Any] = dict.fromkeys(ReplayInput._fields, "")
    values |= dict.fromkeys(("unit_life", "decided_at", "first_at", "last_at"), 0)
    values |= {"run": "r", "node": "B1", "dests": [], "entered": False, "seq": seq, "kind": kind}
    return ReplayInput(**{**values, **fields})


SUB = step(
    1,
    "apply",
    op_id="A#1",
    op_kind="sub",
    client="A",
    filter="[x,>=,3]",
    source="@A",
    outcome="+",
)
PUB = step(2, "match", op_id="E:0:1", op_kind="pub", client="E", filter="[x,4]", source="@E")

WORD = {"number": 1, "op_kind": "sub", "filter": "[x,>=,3]", "node": "B1"}


@pytest.mark.parametrize(
    ("function", "arguments", "found"),
    [
        (
            partial(replay, versioned=["d-tx"], replicated=["s-tx"]),
            ([SUB, PUB],),
            [
                ReplayResult("r", "B1", "verdict", "divergence", "", "E:0:1"),
                ReplayResult(
                    "r",
                    "B1",
                    "line",
                    table="prt",
                    client="A",
                    op_id="A#1",
                    op_kind="sub",
                    filter="[x,>=,3]",
                    hop="@A",
                ),
            ],
        ),
        (tables.live, ([WORD],), [WORD]),
        (
            tables.stands,
            ([WORD | {"table": "prt", "client": "A"}], []),
            [("B1", "prt", "A", "sub", "[x,>=,3]", "@A", 1)],
        ),
        (reads.blamed, ([], None), []),
        (history.moved_by, ([],), []),
        (traces.come_before, ([],), []),
    ],
)
def test_what_is_shipped_runs_where_nothing_is_installed(
    function: object, arguments: object, found: list[object], tmp_path: Path
) -> None:
    pickled = tmp_path / "function"
    pickled.write_bytes(cloudpickle.dumps((function, arguments)))
    # What PySpark needs lies beside it; development installations are not looked up there.
    site = Path(pyspark.__file__).parent.parent
    command = [sys.executable, "-I", "-S", "-c", EXECUTOR, str(archive(tmp_path)), str(site)]
    done = subprocess.run([*command, str(pickled)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(found)
