"""A broker process whose settings come as JSON; the command line leaves them at their defaults."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlay.broker.core import Broker, Taken
from overlay.hosts import durable
from overlay.hosts.settings import Settings
from overlay.messages import AnyMessage, Hop, Pub
from overlay.node.node import Node
from padres_tx.broker_process import run_broker
from topologies import Topology


class Fragile(Broker):
    """A core with a planted bug: it fails at a publication with payload b"bug"."""

    def take(
        self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
    ) -> Taken:
        if any(isinstance(said, Pub) and said.payload == b"bug" for said in messages[start:]):
            raise KeyError("planted")
        return super().take(source, messages, now, start)


def hold_snapshots(pipe: str) -> None:
    """Let snapshots be taken at every opportunity, and each wait until somebody opens the pipe."""
    freeze = durable.freeze_node

    def held(node: Node, now: float) -> bytes:
        with Path(pipe).open("rb") as released:
            released.read()
        return freeze(node, now)

    durable.WORKED_S = 0.0
    durable.freeze_node = held


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    topology = Topology.model_validate(task.pop("topology"))
    settings = Settings(**task.pop("settings", {}))
    files = {key: Path(task.pop(key)) for key in ("log_file", "trace_file", "state") if key in task}
    core = Fragile if task.pop("fragile", False) else Broker
    name = task.pop("name")
    if "snapshots_wait" in task:
        hold_snapshots(task.pop("snapshots_wait"))
    if "files" in task:
        limit = task.pop("files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    ready_fd = int(sys.argv[2])
    sys.exit(
        run_broker(
            topology, name, settings=settings, ready_fd=ready_fd, make_core=core, **files, **task
        )
    )


if __name__ == "__main__":
    main()
