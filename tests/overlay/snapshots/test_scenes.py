"""Snapshots that an earlier version has written can be read, and the overlay goes on with them."""

from __future__ import annotations

import msgspec
import pytest

from overlay.filters import Filter
from overlay.messages import Done, Hop, Join, Operation, Pub, client_hop
from overlay.snapshots import freeze
from overlay.snapshots.image import _decode
from tests.overlay.snapshots.scenes import DATA, MOMENTS, Continuation, read, record

FILES = sorted(path.name for path in DATA.glob("*.scene"))


def test_there_are_scenes_of_every_kind_of_state() -> None:
    assert set(FILES) >= MOMENTS.keys()
    kinds = set()
    for file in MOMENTS:
        for snapshot in read(DATA / file).snapshots.values():
            kinds |= {part.name for kind in _decode(snapshot).kinds for part in kind.parts}
    assert kinds >= {
        *("d-tx", "d-tx-ni", "s-tx", "dynamic-state", "static-state", "op-task", "frame"),
        *("planned-entries", "preparation", "plain-write", "reserved-filter"),
        *("undo", "past", "seen"),
        *("held-item", "long-work", "long-operation", "moving-subscriptions", "retargeting"),
        *("search", "space-search", "covered-entries", "Operation", "Pub", "EngineMessage"),
    }


@pytest.mark.parametrize("file", FILES)
def test_transactions_of_all_engines_go_on_and_end(file: str) -> None:
    overlay = Continuation(read(DATA / file))
    begun = {tx for open in overlay.open().values() for tx in open}
    assert all(overlay.open()[engine] for engine in ("d-tx", "d-tx-ni", "s-tx"))
    overlay.finish_frames()
    overlay.run()
    assert not any(overlay.open().values())
    for core in overlay.cores.values():
        assert core.at_rest
        assert not any(engine.transactions() for engine in core.engines.values())
        assert core.routing.is_plain
    assert begun & overlay.ended.keys()
    assert all(len(outcomes) == 1 for outcomes in overlay.ended.values())
    assert {True} in overlay.ended.values()
    # What was open is known everywhere in one way.
    for tx in begun:
        assert len(overlay.outcomes(tx)) <= 1


@pytest.mark.parametrize("file", FILES)
def test_the_overlay_serves_new_clients(file: str) -> None:
    overlay = Continuation(read(DATA / file))
    overlay.finish_frames()
    overlay.run()
    first, *_, last = sorted(overlay.cores)
    publisher, subscriber = client_hop("Publisher"), client_hop("Subscriber")
    for hop, at in ((publisher, first), (subscriber, last)):
        overlay.post(hop, Hop(at), Join(1, hop[1:], ""))
        overlay.run()
    wanted = Filter({"class": "quite new"})
    overlay.post(publisher, Hop(first), Operation(2, "adv", "Publisher", 0, wanted))
    overlay.post(subscriber, Hop(last), Operation(2, "sub", "Subscriber", 0, wanted))
    overlay.run()
    overlay.post(publisher, Hop(first), Pub("Publisher", 1, {"class": "quite new"}))
    overlay.run()
    answers = overlay.received[subscriber]
    assert [answer.code for answer in answers if isinstance(answer, Done)] == ["", ""]
    assert [pub.seq for pub in answers if isinstance(pub, Pub)] == [1]


@pytest.mark.parametrize("file", FILES)
def test_a_thawed_scene_freezes_to_the_same_bytes(file: str) -> None:
    scene = read(DATA / file)
    again = {name: freeze(core) for name, core in Continuation(scene).cores.items()}
    for name, snapshot in again.items():
        before = scene.snapshots[name]
        # A class that has a later version by now is written in that one.
        assert snapshot == before or _decode(snapshot).kinds != _decode(before).kinds
    thawed = Continuation(msgspec.structs.replace(scene, snapshots=again))
    assert {name: freeze(core) for name, core in thawed.cores.items()} == again


def test_the_script_that_writes_scenes_still_works() -> None:
    scene = record(*MOMENTS["crowd-1.scene"])
    assert scene.snapshots.keys() == scene.neighbours.keys()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(scene), type=type(scene)) == scene
    assert any(Continuation(scene).open().values())
