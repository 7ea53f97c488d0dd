"""What the players of experiments record is what they have done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from bench.experiments.roles import Scene
from bench.experiments.workloads import Source, StreamOptions
from bench.records import Book


class HeldBack:
    """A client whose publisher has to wait, so that others of its program go on meanwhile."""

    name = "E"

    def __init__(self) -> None:
        self.published: list[int] = []

    async def publish(self, point: dict[str, Any]) -> None:
        self.published.append(point["n"])
        await asyncio.sleep(0)


def test_an_event_is_recorded_under_the_number_that_it_was_published_with(tmp_path: Path) -> None:
    """While the publisher is held back a dispatching takes the next number."""

    async def publish_while_somebody_counts_on() -> tuple[list[int], list[int]]:
        client: Any = HeldBack()
        book = Book("run", "E", tmp_path / "E.jsonl", lambda: 0)
        scene = Scene(1, "d-tx", None, 0, 1, {"E": "E", "D": "D", "A1": "A1", "A2": "A2"}, {})
        source = Source("E", client, scene, book, StreamOptions(events_between=5))
        source._instances = [1]

        async def count_on() -> None:
            for _ in range(5):
                source.n += 1
                await asyncio.sleep(0)

        await asyncio.gather(source._publish(0.0), count_on())
        book.close()
        lines = (tmp_path / "E.jsonl").read_text().splitlines()
        return client.published, [json.loads(line)["n"] for line in lines]

    published, recorded = asyncio.run(publish_while_somebody_counts_on())
    assert published == recorded == [1, 3, 5, 7, 9]
