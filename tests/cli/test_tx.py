"""`padres-tx tx`: what an operator sees of transactions, and can end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import padres_tx
from padres_tx.errors import TransactionAborted
from padres_tx.launcher.overlay_files import OverlayRecord
from tests.cli.test_cli import Shell

CALLS = "[class,eq,'call']"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which the overlay three runs."""
    shell = Shell(tmp_path_factory.mktemp("tx") / "state")
    shell.ok("up", "three", "--detach", "--free-ports")
    yield shell
    shell.ok("down")


def overlay(shell: Shell) -> OverlayRecord:
    return shell.overlay("three")


def listed(shell: Shell, *arguments: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(shell.ok("tx", "ls", "--json", *arguments))
    return told


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni"])
def test_an_open_transaction_is_listed_shown_and_aborted(shell: Shell, engine: str) -> None:
    asyncio.run(_look_and_abort(shell, engine))
    assert listed(shell) == []


async def _look_and_abort(shell: Shell, engine: str) -> None:
    brokers = overlay(shell)
    called = asyncio.Event()

    async def never_done(tx: Any, tcm: Any) -> None:
        called.set()
        await asyncio.Event().wait()

    async with (
        padres_tx.connect(brokers.broker("B1").address, name="E") as coordinator,
        padres_tx.connect(brokers.broker("B3").address, name="D") as participant,
    ):
        participant.on_tcm(None, never_done)
        await coordinator.advertise(CALLS)
        await participant.subscribe(CALLS)
        with pytest.raises(TransactionAborted) as aborted:
            async with coordinator.transaction(engine) as tx:
                tx.tcm({"class": "call"})
                await called.wait()
                await asyncio.to_thread(_look, shell, engine, tx.id)
                said = await asyncio.to_thread(shell.ok, "tx", "abort", tx.id)
        assert said == f"{tx.id} ({engine}) is aborted at every broker\n"
        assert (aborted.value.code, aborted.value.reason) == ("operator", "an operator aborted it")
        again = await asyncio.to_thread(shell.run, "tx", "abort", tx.id)
        assert again.exit_code == 1 and f"{tx.id} is already aborted" in again.stderr
        await asyncio.to_thread(_look_back, shell, engine, tx.id)


def _look(shell: Shell, engine: str, name: str) -> None:
    (line,) = listed(shell)
    assert (line["tx"], line["engine"], line["coordinator"]) == (name, engine, "E")
    assert (line["broker"], line["edge"], line["status"]) == ("B1", True, "active")
    here, there = line["waits_for"].split("; ")
    assert here.endswith("under way") and there == "B3: D to finish what a tcm asked for"
    assert line["since_s"] >= 0
    table = shell.ok("tx", "ls", "--overlay", "three")
    assert all(word in table for word in (name, engine, "B1", "active", "waits for"))

    told = json.loads(shell.ok("tx", "show", name, "--json"))
    assert (told["tx"], told["engine"], told["coordinator"]) == (name, engine, "E")
    assert [(at["broker"], at["edge"]) for at in told["brokers"]] == [
        ("B1", True),
        ("B2", False),
        ("B3", False),
    ]
    assert told["brokers"][2]["waits_for"] == "D to finish what a tcm asked for"
    shown = shell.ok("tx", "show", name)
    assert "B1 decides it" in shown and "D to finish what a tcm asked for" in shown
    assert f"open: {name}" in shell.refused("tx", "show", "E:1:999")

    # Of the brokers that are asked, B3 does not decide it.
    at = overlay(shell).broker("B3").address
    assert [line["broker"] for line in listed(shell, "--at", at)] == [at]
    refused = shell.run("tx", "abort", name, "--at", at)
    assert refused.exit_code == 1 and "the broker of its coordinator, E" in refused.stderr


def _look_back(shell: Shell, engine: str, name: str) -> None:
    """It is over, and how it ended can be seen at every broker."""
    told = json.loads(shell.ok("tx", "show", name, "--json"))
    assert (told["tx"], told["engine"], told["coordinator"]) == (name, engine, "E")
    assert [at["broker"] for at in told["brokers"]] == ["B1", "B2", "B3"]
    for at in told["brokers"]:
        assert (at["status"], at["edge"]) == ("aborted", at["broker"] == "B1")
        if "ended_s" in at:  # Until every broker has acknowledged it, it is not over.
            assert (at["code"], at["reason"]) == ("operator", "an operator aborted it")
            assert at["ended_s"] >= 0
    shown = shell.ok("tx", "show", name)
    assert "B1 decided it" in shown and "aborted" in shown
    ended = [line for line in listed(shell, "--ended") if line["tx"] == name]
    assert [(line["broker"], line["status"], line["code"]) for line in ended] == [
        ("B1", "aborted", "operator")
    ]
    assert f"open: {name}" not in shell.refused("tx", "show", "E:1:999")


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
def test_a_commit_can_be_looked_at_afterwards(shell: Shell, engine: str) -> None:
    async def commit() -> str:
        async with padres_tx.connect(overlay(shell).broker("B2").address, name="C") as client:
            async with client.transaction(engine, wait="applied") as tx:
                tx.sub(CALLS)
            return tx.id

    name = asyncio.run(commit())
    (line,) = [line for line in listed(shell, "--ended") if line["tx"] == name]
    assert (line["engine"], line["broker"], line["status"]) == (engine, "B2", "committed")
    table = shell.ok("tx", "ls", "--ended")
    assert all(word in table for word in (name, engine, "committed", "ago"))
    told = json.loads(shell.ok("tx", "show", name, "--json"))
    assert {at["status"] for at in told["brokers"]} <= {"committed", "finished"}
    assert "committed" in shell.ok("tx", "show", name) or engine == "s-tx"
    newest = listed(shell, "--ended")
    assert [line["ended_s"] for line in newest] == sorted(line["ended_s"] for line in newest)
    # Where it has not been there is nothing to see.
    if engine == "s-tx":
        at = overlay(shell).broker("B1").address
        assert "no broker knows transaction" in shell.refused("tx", "show", name, "--at", at)


def test_a_clients_reason_cannot_command_the_terminal(shell: Shell) -> None:
    async def abort() -> str:
        async with padres_tx.connect(overlay(shell).broker("B2").address, name="H") as client:
            tx = await client.beginTX("d-tx")
            await client.abortTX(tx, "escape \x1b[2J\x07")
            return tx

    name = asyncio.run(abort())
    shown = shell.ok("tx", "show", name)
    assert "escape ?[2J?" in shown and "\x1b" not in shown


def test_nothing_open_is_said_to_people_only(shell: Shell) -> None:
    done = shell.run("tx", "ls")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no transaction is open\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("tx", "show", "E"), "invalid transaction id 'E'"),
        (("tx", "abort", "E:x"), "invalid transaction id 'E:x'"),
        (("tx", "show", "E:1:17"), "no broker knows transaction E:1:17; open: none"),
        (("tx", "abort", "E:1:17"), "no broker knows transaction E:1:17"),
        (("tx", "ls", "--overlay", "four"), "no overlay named four"),
        (
            ("tx", "ls", "--overlay", "three", "--at", "h:1"),
            "--at cannot be combined with --overlay",
        ),
    ],
)
def test_wrong_input_is_one_line(shell: Shell, arguments: tuple[str, ...], reason: str) -> None:
    assert reason in shell.refused(*arguments)


def test_a_broker_that_does_not_answer_fails_the_check(shell: Shell) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{nobody.getsockname()[1]}"
        at = overlay(shell).broker("B2").address
        some = shell.run("tx", "ls", "--json", "--at", silent, "--at", at)
        assert (some.exit_code, json.loads(some.stdout)) == (1, [])
        assert f"{silent} does not reply" in some.stderr
        none = shell.run("tx", "ls", "--at", silent)
        assert none.exit_code == 1 and "no broker replies" in none.stderr
        missing = shell.run("tx", "show", "E:1:17", "--at", silent, "--at", at)
        assert missing.exit_code == 1 and "the list may be incomplete" in missing.stderr
