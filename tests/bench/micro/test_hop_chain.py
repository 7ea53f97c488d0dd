"""Tiny runs of `bench hop` and `bench chain`: their output, and the errors that they detect."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.children import Child
from bench.errors import ChildFailed
from bench.micro import chain, disk, hop
from bench.micro.cli import bench
from bench.micro.endpoints import EndpointError, EndpointTask, Round, SubscribingEndpoint
from bench.micro.traffic import ADVERTISED, WANTED, all_matching, not_matching
from overlay.filters import Value
from overlay.messages import Pub
from overlay.notation import parse_filter
from overlay.wire.frames import pack
from padres_tx.launcher.processes import ProcessIdentity, alive, identify
from tests.platform_needs import needs_proc

EVENTS: list[dict[str, Value]] = [
    {"class": "order", "instance": "x0", "price": 0.5},
    {"class": "order", "instance": "x99", "price": 999.5},
]

CHAIN = chain.ChainRow(
    brokers=3,
    subscriptions=0,
    matching=False,
    publications=10,
    publications_per_s=20_000,
    relay_publications_per_s=50_000,
    disk_publications_per_s=16_000,
    disk_share=0.8,
    bare_publications_per_s=None,
    share=None,
    latency_us_p50=400.0,
    latency_us_p99=900.0,
    relay_latency_us_p50=200.0,
    relay_latency_us_p99=300.0,
    disk_latency_us_p50=900.0,
    disk_latency_us_p99=2000.0,
    file_system="ext4",
    latency_rate_per_s=1000.0,
    cpu_us=[3.0, 2.0, 2.0],
)


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's temporary directories are on."""
    monkeypatch.setattr(disk, "IN_MEMORY", ())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


# --- the commands ---


@pytest.mark.slow
@needs_proc
def test_hop_prints_the_broker_beside_the_relay() -> None:
    result = run("hop", "--json", "--publications", "50", "--subscriptions", "20")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert list(row) == [
        "broker_us",
        "relay_us",
        "ratio",
        "edge_us",
        "edge_ratio",
        "disk_us",
        "disk_ratio",
        "disk_edge_us",
        "disk_edge_ratio",
        "file_system",
        "publications",
        "subscriptions",
    ]
    del row["file_system"]
    assert all(row[key] > 0 for key in row)


def test_a_ratio_is_of_rounds_that_were_run_in_turn() -> None:
    # The machine was twice as slow in the second round, and stumbled in the last.
    assert hop.median_ratio([2.0, 4.2, 2.2, 9.0], [1.0, 2.0, 1.0, 1.0], 2) == 2.15


@pytest.mark.slow
def test_chain_prints_brokers_beside_relays() -> None:
    result = run("chain", "--json", "--brokers", "2", "--publications", "50")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert (row["brokers"], row["subscriptions"]) == (2, 0)
    assert row["bare_publications_per_s"] is None
    assert row["publications_per_s"] > 0
    assert row["relay_publications_per_s"] > 0
    assert row["disk_publications_per_s"] > 0
    assert 0 < row["latency_us_p50"] <= row["latency_us_p99"]
    assert 0 < row["relay_latency_us_p50"] <= row["relay_latency_us_p99"]
    assert 0 < row["disk_latency_us_p50"] <= row["disk_latency_us_p99"]


@pytest.mark.slow
def test_people_get_a_table_and_a_verdict() -> None:
    result = run(
        *("chain", "--brokers", "1", "--publications", "20"),
        *("--subscriptions", "30", "--matching"),
    )
    assert result.exit_code == 0, result.output
    assert "30 other subscriptions, all matching" in result.stdout
    assert "brokers without these" in result.stdout
    assert "goals hold" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("chain", "--brokers", "0"),
        ("chain", "--publications", "0"),
        ("chain", "--matching"),
        ("hop", "--subscriptions", "-1"),
    ],
)
def test_bad_numbers_are_refused(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert arguments[1] in result.stderr


@needs_proc
def test_an_interruption_leaves_no_process_behind() -> None:
    started: list[ProcessIdentity] = []

    def interrupt(next_step: str) -> None:
        if "round" in next_step:
            found = (identify(pid) for pid in children_of(os.getpid()))
            started.extend(process for process in found if process is not None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chain.measure(brokers=1, publications=10, progress=interrupt)
    assert len(started) >= 6, "a broker, a relay, and two ends for each"
    assert not any(alive(process) for process in started)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


# --- what they send ---


def test_other_subscriptions_lie_in_the_advertised_space_and_match_nothing() -> None:
    space = parse_filter(ADVERTISED)
    assert all(space.matches(event) for event in EVENTS)
    assert all(parse_filter(WANTED).matches(event) for event in EVENTS)
    for text in not_matching(50):
        assert parse_filter(text).overlaps(space), text
        assert not any(parse_filter(text).matches(event) for event in EVENTS), text


def test_matching_subscriptions_all_match_and_none_covers_another() -> None:
    filters = [parse_filter(text) for text in [WANTED, *all_matching(50)]]
    assert all(filter.matches(event) for filter in filters for event in EVENTS)
    # The first is the subscriber's own; later ones must not make earlier ones obsolete.
    for number, filter in enumerate(filters):
        assert not any(later.covers(filter) for later in filters[number + 1 :])


# --- what goes wrong ---


@pytest.mark.parametrize("numbers", [(1, 3), (1, 1), (2, 1)], ids=["lost", "doubled", "reordered"])
def test_a_subscriber_notices(numbers: tuple[int, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        subscriber = SubscribingEndpoint(
            EndpointTask("subscriber", "frames", server.getsockname()[1], "S", [])
        )
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"".join(pack(Pub("P", n, EVENTS[0])) for n in numbers))
            with pytest.raises(EndpointError, match="publication"):
                subscriber.run(Round(2))
    subscriber.line.close()


def test_a_child_that_fails_is_an_error_that_says_why(tmp_path: Path) -> None:
    with Child("end", "bench.micro.endpoints", directory=tmp_path) as end:
        end.tell(b'{"side": "neither"}')
        with pytest.raises(ChildFailed, match=r"end has died, exit code 1(?s:.*)neither"):
            end.ready()


def test_a_child_ends_with_its_leash(tmp_path: Path) -> None:
    with Child("relay", "bench.micro.relay", directory=tmp_path) as relay:
        assert int(relay.ready()) > 0
        process = identify(relay.pid)
        assert process is not None
    assert not alive(process)


# --- what they make of it ---


def test_percentiles_are_of_the_nearest_rank() -> None:
    falling = [float(us) for us in range(200, 0, -1)]
    assert chain.percentile(falling, 50) == 100
    assert chain.percentile(falling, 99) == 198
    assert chain.percentile([7.0], 50) == chain.percentile([7.0], 99) == 7


def test_goals_are_throughput_and_what_a_full_table_leaves_of_it() -> None:
    always = [
        ("publications per second", 20_000, 14_000),
        ("share on disk of those in memory", 0.8, 0.7),
    ]
    assert chain.goals(CHAIN) == always
    full = replace(CHAIN, subscriptions=1000, bare_publications_per_s=25_000, share=0.85)
    assert chain.goals(full) == [
        *always,
        ("share with 1,000 subscriptions", 0.85, 0.8),
    ]
