"""The same inputs make the same bytes, in another process under another seed of hashes, too."""

from __future__ import annotations

import msgspec
import pytest

from proofs.faults.durability_bugs import register
from proofs.sim.program import FAULTS, MIXED, Shape
from proofs.sim.replays import RecordedLog, ReplayedOutputs, differences, record, replay_elsewhere

#: The hashes of strings of this process are random, or chosen by whoever has started it.
HASH_SEEDS = (11, 12)

CROWD = Shape(MIXED, 4, 6, 6, FAULTS, crowded=True)


def recorded(
    shape: Shape, seeds: range, core: str = ""
) -> list[tuple[RecordedLog, ReplayedOutputs]]:
    return [pair for seed in seeds for pair in record(shape, seed, core=core)]


@pytest.mark.parametrize("shape", [CROWD, Shape(MIXED, faults=FAULTS, slice=2)])
def test_a_replay_elsewhere_makes_the_same_bytes_on_every_link(shape: Shape) -> None:
    pairs = recorded(shape, range(6))
    there = replay_elsewhere([log for log, _ in pairs], hash_seed=HASH_SEEDS[0])
    assert differences([outputs for _, outputs in pairs], there) == []
    # Replays of nothing would show nothing.
    assert sum(outputs.batches for outputs in there) > 600
    assert sum(count for outputs in there for count, _ in outputs.links.values()) > 1500


def test_a_core_that_sends_in_the_order_of_a_set_is_found() -> None:
    register()
    prepare = "from proofs.faults.durability_bugs import register; register()"
    logs = [log for log, _ in recorded(CROWD, range(2), core="set-order")]
    one, other = (
        replay_elsewhere(logs, hash_seed=hash_seed, prepare=prepare) for hash_seed in HASH_SEEDS
    )
    found = differences(one, other)
    assert any("other bytes for" in line for line in found)


def test_a_log_that_leads_elsewhere_is_found_by_its_digests() -> None:
    """A batch less, and what follows was not sent so."""
    log, outputs = max(recorded(CROWD, range(1)), key=lambda pair: len(pair[0].batches))
    middle = len(log.batches) // 2
    shorter = msgspec.structs.replace(log, batches=log.batches[:middle] + log.batches[middle + 1 :])
    found = replay_elsewhere([shorter], hash_seed=HASH_SEEDS[0])[0]
    assert found.problem or found.digest != outputs.digest
