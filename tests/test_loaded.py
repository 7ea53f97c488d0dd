"""What is not used is not imported: what programs load, listed by room and library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from padres_tx import registry
from tests.overlay.broker_processes import one, running

#: The rooms that a client needs.
CLIENT = {
    *("overlay", "overlay.matching", "overlay.tables", "overlay.wire"),
    *("padres_tx", "padres_tx.client", "padres_tx.client.asyncio", "padres_tx.engines"),
}

#: A broker process: no services, and of the client's room what BL-WAIT is made of.
BROKER = {
    *(
        "overlay",
        "overlay.broker",
        "overlay.files",
        "overlay.hosts",
        "overlay.node",
        "overlay.matching",
    ),
    *("overlay.log", "overlay.snapshots", "overlay.tables", "overlay.wire"),
    *("padres_tx", "padres_tx.client", "padres_tx.engines"),
    *("padres_tx.engines.d_tx", "padres_tx.engines.d_tx_ni", "padres_tx.engines.s_tx"),
    *("padres_tx.protocol", "padres_tx.protocol.validation"),
    *("topologies", "topologies.data"),
}

#: Libraries for all, and those that only a broker process has: its reactor, and what reads
#: topologies. Neither has click, rich, networkx, pandas or pyspark.
MESSAGES = {"msgspec", "sortedcontainers", "typing_extensions"}
PROCESS = {"twisted", "zope", "pydantic", "pydantic_core", "yaml"}

#: What these bring along.
INDIRECT = {
    *("annotated_types", "attr", "attrs", "automat", "constantly", "hyperlink", "idna"),
    *("incremental", "typing_inspection", "cython_runtime"),
}

OURS = ("overlay", "padres_tx", "topologies", "bench", "proofs")


def loaded(program: str) -> tuple[set[str], set[str]]:
    """The rooms and the libraries that a program has loaded when it is through."""
    listing = """
import sys
for name, module in list(sys.modules.items()):
    print(name, hasattr(module, "__path__"))
"""
    command = [sys.executable, "-c", program + listing]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rooms, libraries = set(), set()
    for line in done.stdout.splitlines():
        name, is_package = line.split()
        top = name.partition(".")[0]
        if top in OURS:
            rooms.add(name if is_package == "True" else name.rpartition(".")[0])
        elif top not in sys.stdlib_module_names and not top.startswith("_"):
            libraries.add(top)
    return rooms, libraries - INDIRECT


def test_the_package_alone_loads_nothing_else() -> None:
    assert loaded("import padres_tx") == ({"padres_tx"}, set())


def test_a_client_loads_no_broker_no_command_line_and_no_service() -> None:
    assert loaded("import padres_tx; padres_tx.connect") == (CLIENT, MESSAGES)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where a broker process listens."""
    with running(tmp_path_factory.mktemp("broker"), "B1", one()) as process:
        yield process.port


TRANSACTION = """
import asyncio, padres_tx

async def run(address, engine):
    async with await padres_tx.connect(address, name=engine) as client:
        async with client.transaction(engine) as tx:
            tx.sub("[class,eq,'p1']")
        assert tx.result.status == "committed", tx.result

asyncio.run(run("127.0.0.1:{port}", "{engine}"))
"""


@pytest.mark.parametrize("engine", registry.own_names())
def test_a_client_with_a_transaction_loads_no_broker(engine: str, port: int) -> None:
    """It loads what the engine declares, and its own half, but never the half at brokers."""
    rooms, libraries = loaded(TRANSACTION.format(port=port, engine=engine))
    assert rooms - {f"padres_tx.engines.{engine.replace('-', '_')}"} == CLIENT
    assert libraries == MESSAGES


def test_a_plain_broker_loads_its_engines_and_no_service() -> None:
    program = """
from padres_tx import broker_process, registry
from topologies import load
registry.broker_factories()
registry.service_factories(load("three").services)
"""
    assert loaded(program) == (BROKER, MESSAGES | PROCESS)
