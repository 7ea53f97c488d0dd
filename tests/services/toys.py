"""Two small services, installed as another package's would be.

`presence` is soft: a broker tells its neighbours which clients there are, and a neighbour that was
restarted again. `counter` is durable: it counts what clients send it, tells all brokers, and
repeats the counts after a while.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

PRESENCE = '''
"""Which clients are there, learned from each other."""

import msgspec

from overlay.broker.service import Service
from overlay.errors import ProtocolError
from overlay.messages import Leave, is_client


class Presence(Service):
    name = "presence"

    def __init__(self, broker):
        super().__init__(broker)
        self.said = {}

    def receive(self, source, body, now):
        try:
            said = msgspec.msgpack.decode(body, type=list[str])
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ProtocolError(f"{source} sent a malformed list of clients") from error
        if is_client(source):
            return self.send_to((source,), msgspec.msgpack.encode(sorted(self.known())))
        self.said[source] = said
        return []

    def known(self):
        return dict.fromkeys(name for names in self.said.values() for name in names)

    def _tell(self, hops):
        here = sorted(map(str, self.broker.routing.crt))
        return self.send_to(hops, msgspec.msgpack.encode(here))

    def routes_changed(self, changes, now):
        return self._tell(tuple(self.broker.routing.neighbours))

    def client_left(self, client, now):
        return self._tell(tuple(self.broker.routing.neighbours))

    def link_reset(self, neighbour, now):
        self.said.pop(neighbour, None)
        return self._tell((neighbour,))

    def inspect(self, argument, now):
        return {"known": sorted(self.known())}, []


service = Presence
'''

COUNTER = '''
"""Counts what clients send, at every broker."""

import msgspec

from overlay.broker.service import DurableService, Snapshot
from overlay.errors import ProtocolError
from overlay.messages import is_client

REPEAT_S = 0.01


class Counter(DurableService):
    name = "counter"

    def __init__(self, broker):
        super().__init__(broker)
        self.counts = {}
        self.due = {}

    def receive(self, source, body, now):
        try:
            word = msgspec.msgpack.decode(body, type=str)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ProtocolError(f"{source} sent a malformed word") from error
        self.counts[word] = self.counts.get(word, 0) + 1
        others = tuple(hop for hop in self.broker.routing.neighbours if hop != source)
        effects = self.send_to(others, msgspec.msgpack.encode(word))
        if is_client(source):
            self.due[source] = now + REPEAT_S
            effects.append(self.timer(source, REPEAT_S))
        return effects

    def wake(self, key, now):
        if self.due.pop(key, None) is None or not self.broker.is_here(key):
            return []
        return self.send_to((key,), msgspec.msgpack.encode(self.counts))

    def snapshot(self):
        return Snapshot(1, msgspec.msgpack.encode((self.counts, self.due)))

    def restore(self, snapshot, now):
        if snapshot.version != 1:
            raise ValueError(f"counter cannot read version {snapshot.version}")
        self.counts, self.due = msgspec.msgpack.decode(
            snapshot.data, type=tuple[dict[str, int], dict[str, float]]
        )
        return [self.timer(key, max(due - now, 0.0)) for key, due in self.due.items()]

    def inspect(self, argument, now):
        return self.counts, []


service = Counter
'''


def install(
    place: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str, source: str
) -> None:
    """Install a module with an entry point, as pip would; other processes find it, too."""
    module = f"toy_{name.replace('-', '_')}"
    (place / f"{module}.py").write_text(source, encoding="utf-8")
    info = place / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(str(place))
    path = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys(path)))
    importlib.invalidate_caches()
