"""The roles of experiments record what they have done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from bench.experiments.roles import ScenarioInstance
from bench.experiments.workloads import StreamOptions, StreamSource
from bench.records import RecordWriter


class HeldBack:
    """A client whose `publish` yields, so that other tasks run meanwhile."""

    name = "E"

    def __init__(self) -> None:
        self.published: list[int] = []

    async def publish(self, point: dict[str, Any]) -> None:
        self.published.append(point["n"])
        await asyncio.sleep(0)


def test_an_event_is_recorded_under_the_number_that_it_was_published_with(tmp_path: Path) -> None:
    """While `publish` waits, a dispatching takes the next number."""

    async def publish_while_the_number_advances() -> tuple[list[int], list[int]]:
        client: Any = HeldBack()
        writer = RecordWriter("run", "E", tmp_path / "E.jsonl", lambda: 0)
        scenario = ScenarioInstance(
            1, "d-tx", None, 0, 1, {"E": "E", "D": "D", "A1": "A1", "A2": "A2"}, {}
        )
        source = StreamSource("E", client, scenario, writer, StreamOptions(events_between=5))
        source._instances = [1]

        async def advance() -> None:
            for _ in range(5):
                source.n += 1
                await asyncio.sleep(0)

        await asyncio.gather(source._publish(0.0), advance())
        writer.close()
        lines = (tmp_path / "E.jsonl").read_text().splitlines()
        return client.published, [json.loads(line)["n"] for line in lines]

    published, recorded = asyncio.run(publish_while_the_number_advances())
    assert published == recorded == [1, 3, 5, 7, 9]
