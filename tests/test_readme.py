"""The programs in README.md and docs/ run as they stand there."""

from __future__ import annotations

import asyncio
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import padres_tx
from padres_tx import launcher
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.dispatching_clients import assert_at_rest, asynchronous, numbers

ROOT = Path(__file__).parents[1]
JOBS = "[class,eq,'job']"

#: Between two looks at a program's output.
POLL_S = 0.05


def programs(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def functions(document: str) -> dict[str, Any]:
    """All that a document's programs define."""
    names: dict[str, Any] = {"padres_tx": padres_tx}
    for program in programs(document):
        exec(program, names)
    return names


@pytest.mark.parametrize("document", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
def test_the_tests_that_a_document_names_exist(document: Path) -> None:
    for file, _, test in re.findall(r"`(tests/[\w/]+\.py)(::(\w+))?`", document.read_text()):
        assert (ROOT / file).is_file(), file
        assert f"def {test}(" in (ROOT / file).read_text() or not test, f"{file}::{test}"


@pytest.mark.parametrize("planned", [False, True])
@asynchronous
async def test_the_example_moves_a_job_and_nothing_else(planned: bool) -> None:
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("shop", at="B1") as shop,
        overlay.connect_async("dispatcher", at="B2") as dispatcher,
        overlay.connect_async("worker", at="B3") as worker,
    ):
        await shop.advertise(JOBS)
        await dispatcher.subscribe(JOBS)
        example = functions("docs/transactions.md")
        if planned:
            await worker.advertise("[class,eq,'take']")
            await dispatcher.subscribe("[class,eq,'take']")
            await example["take_over_planned"](worker)
        else:
            await example["take_over"](worker, dispatcher)
        for order in (7, 8):
            await shop.publish({"class": "job", "order": order, "n": order})
        assert (await numbers(worker), await numbers(dispatcher)) == ([7], [8])
        assert_at_rest(overlay)


@asynchronous
async def test_a_worker_retires_when_its_stream_is_drained() -> None:
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("shop", at="B1") as shop,
        overlay.connect_async("new", at="B3") as new,
    ):
        old = await overlay.connect_async("old", at="B2")
        await shop.advertise(JOBS)
        await new.advertise("[class,eq,'take']")
        received: list[Any] = []
        await old.subscribe(JOBS, lambda job: received.append(job["n"]))
        await old.subscribe("[class,eq,'take']")
        retiring = asyncio.create_task(functions("docs/transactions.md")["retire"](old, JOBS))
        await shop.publish({"class": "job", "n": 1})
        async with new.transaction("d-tx") as tx:
            tx.tcm({"class": "take"})
            tx.sub(JOBS)
        await retiring
        await shop.publish({"class": "job", "n": 2})
        assert (received, await numbers(new)) == ([1], [2])


@asynchronous
async def test_the_outcome_of_a_commit_is_asked_for_after_the_connection_is_lost() -> None:
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("dispatcher", at="B2") as dispatcher,
        overlay.connect_async("worker", at="B3") as worker,
    ):
        await worker.advertise(JOBS)
        await dispatcher.subscribe(JOBS)
        called, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(tx: padres_tx.Part, notification: padres_tx.Notification) -> None:
            called.set()
            await go_on.wait()

        dispatcher.on_tcm(None, slowly)
        tx = await worker.beginTX("d-tx")
        worker.txTCM(tx, {"class": "job"})
        commit = functions("docs/transactions.md")["commit"]
        committing = asyncio.create_task(commit(worker, tx, lambda: overlay.connect_async(at="B1")))
        await called.wait()
        worker._requests.channel.abort(padres_tx.ConnectionLost("the cable"))
        go_on.set()
        result = await committing
        assert (result.tx, result.status, result.code) == (tx, "aborted", "left")
        assert_at_rest(overlay)


@asynchronous
async def test_what_the_page_on_receiving_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with launcher.overlay("one") as running:
        at = running.address("B1")
        example = functions("docs/receiving.md")
        receiving = asyncio.create_task(example["with_asyncio"](at))
        async with padres_tx.connect(at, name="sensor") as sensor, example["connect_worker"](at):
            await sensor.advertise("[class,eq,'alarm']")
            while "alarm 3 from sensor" not in capsys.readouterr().out:
                await sensor.publish({"class": "alarm", "level": 3})
                await asyncio.sleep(0.01)
        await example["publish"](at)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


def test_the_first_program_prints_an_event(tmp_path: Path) -> None:
    """README's first ten lines, as a program of their own."""
    with launcher.overlay("three") as running:
        program = tmp_path / "first.py"
        address = "127.0.0.1:7003"
        source = programs("README.md")[0]
        assert source.count(address) == 1
        program.write_text(source.replace(address, running.address("B3")))
        with (
            subprocess.Popen([sys.executable, "-u", str(program)], stdout=subprocess.PIPE) as first,
            padres_tx.sync.connect(running.address("B1")) as shop,
        ):
            assert first.stdout is not None
            try:
                shop.advertise("[class,eq,'order']")
                # When the program has subscribed, the next order above 100 is printed.
                while not select.select([first.stdout], [], [], POLL_S)[0]:
                    shop.publish({"class": "order", "price": 99})
                    shop.publish({"class": "order", "price": 150})
                assert first.stdout.readline() == b"150\n"
            finally:
                first.terminate()
