"""An engine from another package: found by its entry point, in broker processes too."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from pathlib import Path

import pytest

import padres_tx
from padres_tx import launcher, registry
from padres_tx.testing.inprocess import InProcessOverlay

#: The engine of docs/engines.md, as its readers have it.
ENGINE = re.findall(
    r"```python\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8"),
    re.DOTALL,
)[0].replace("my-engine", "toy")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another package, installed as pip would: a module, and metadata with an entry point."""
    (tmp_path / "toy_engine.py").write_text(ENGINE)
    info = tmp_path / "toy_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[padres_tx.engines]\ntoy = toy_engine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    importlib.invalidate_caches()
    return "toy"


async def hand_over(engine: str, abel: padres_tx.Client, cain: padres_tx.Client) -> list[str]:
    """Each takes a subscription in a transaction of its own; the outcomes."""
    outcomes = []
    for client in (abel, cain):
        tx = await client.beginTX(engine)
        client.txSub(tx, "[class,eq,'p1']")
        outcomes.append(await client.commitTX(tx))
    return [f"{outcome.status} {outcome.reason}".strip() for outcome in outcomes]


EXPECTED = ["committed", "aborted Cain may not commit"]


def test_it_is_found_by_its_name_without_a_list(toy: str) -> None:
    assert registry.names() == ["bl-wait", "d-tx", "d-tx-ni", "s-tx", "toy"]
    assert registry.broker_half("toy").__name__ == "MyEngine"
    with pytest.raises(padres_tx.UnknownEngine, match="there are bl-wait, d-tx, d-tx-ni, s-tx"):
        registry.load("no-such")


def test_it_works_in_an_overlay_beside_the_others(toy: str) -> None:
    async def run() -> None:
        with InProcessOverlay("three") as overlay:
            abel = await overlay.connect_async("Abel", at="B1")
            cain = await overlay.connect_async("Cain", at="B3")
            assert await hand_over("toy", abel, cain) == EXPECTED
            assert await hand_over("d-tx", abel, cain) == ["committed", "committed"]

    asyncio.run(run())


def test_broker_processes_find_it_too(toy: str) -> None:
    async def run(running: launcher.Running) -> None:
        async with (
            padres_tx.connect(running.address("B1"), name="Abel") as abel,
            padres_tx.connect(running.address("B3"), name="Cain") as cain,
        ):
            assert await hand_over("toy", abel, cain) == EXPECTED

    with launcher.overlay("three") as running:
        asyncio.run(run(running))
