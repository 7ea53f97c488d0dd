"""The pytest plugin, as users' own tests see it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]


def test_the_fixture_gives_an_overlay_to_blocking_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        def test_a1_gets_orders(padres_overlay):
            a1 = padres_overlay.connect("A1", at="B1")
            e = padres_overlay.connect("E", at="B3")
            a1.subscribe("[class,eq,'order'],[price,>,100]")
            e.advertise("[class,eq,'order']")
            e.publish("[class,'order'],[price,150]")
            e.publish("[class,'order'],[price,50]")
            assert [n["price"] for n in a1.notifications(timeout_s=0)] == [150]

        def test_nothing_is_left_of_the_test_before(padres_overlay):
            assert not [t for t in threading.enumerate() if t.name == "padres_tx"]
            padres_overlay.connect("A1")
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_fixture_serves_asyncio_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio

        def test_a1_gets_orders(padres_overlay):
            async def run():
                async with padres_overlay.connect_async("A1", at="B1") as a1:
                    await a1.subscribe("[class,eq,'order']")
                    e = padres_overlay.connect("E", at="B3")
                    e.advertise({"class": "order"})
                    e.publish({"class": "order", "price": 150})
                    assert (await a1.next(timeout_s=0))["price"] == 150
            asyncio.run(run())
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_the_factory_takes_other_topologies(pytester: pytest.Pytester) -> None:
    pytester.makefile(
        ".yaml",
        mine="""
        name: mine
        brokers: [{name: X, port: 0}, {name: Y, port: 0}]
        edges: [[X, Y]]
        clients: {A1: Y}
        """,
    )
    pytester.makepyfile(
        """
        import pytest
        import topologies

        @pytest.mark.parametrize("topology, broker", [("nine", "B9"), ("mine.yaml", "Y")])
        def test_other(padres_overlay_factory, topology, broker):
            overlay = padres_overlay_factory(topology)
            overlay.connect("E", at=broker)
            overlay.connect("A1")
            clients = overlay.core.brokers[broker].routing.as_data()["clients"]
            assert [c["client"] for c in clients] == ["A1", "E"]

        def test_no_such_topology(padres_overlay_factory):
            with pytest.raises(topologies.TopologyError, match="nowhere"):
                padres_overlay_factory("nowhere")
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


def test_a_failing_test_is_reported_as_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_fails(padres_overlay):
            a1 = padres_overlay.connect("A1")
            a1.subscribe({"class": "p1"})
            assert False, "as the user wrote it"
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*as the user wrote it*"])


def test_a_run_that_does_not_use_the_plugin_loads_nothing_of_ours() -> None:
    program = (
        "import sys, padres_tx.testing; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in "
        "('overlay', 'topologies', 'padres_tx', 'msgspec', 'pydantic', 'networkx', 'twisted')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "['padres_tx', 'padres_tx.testing']"


def test_every_public_name_is_there() -> None:
    program = "import padres_tx; [getattr(padres_tx, n) for n in padres_tx.__all__]; dir(padres_tx)"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_the_client_needs_no_twisted() -> None:
    program = (
        "import sys, padres_tx; padres_tx.connect, padres_tx.sync; print('twisted' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "False"
