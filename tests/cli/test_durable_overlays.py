"""Overlays that are restarted, killed, stopped and started again, as operators do it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import padres_tx
from padres_tx.launcher import processes
from padres_tx.launcher.state_directories import ABOUT, HANDED_ON
from tests.cli.test_cli import Shell, until

JOBS = "[class,eq,'job']"

#: Only what hangs runs into it.
PATIENCE_S = 60.0


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "overlays", columns=80)


@pytest.fixture
def three(shell: Shell) -> Iterator[Shell]:
    """A shell in which the overlay three runs in disk mode."""
    shell.ok("up", "three", "--durability", "disk", "--detach", "--free-ports")
    yield shell
    if shell.files.get("three") is not None:
        shell.ok("down")


def durability(shell: Shell) -> dict[str, dict[str, Any]]:
    brokers = json.loads(shell.ok("status", "--json"))["brokers"]
    return {broker["name"]: broker["durability"] for broker in brokers}


class Stream:
    """Events from a publisher at the first broker to a subscriber at the last."""

    def __init__(self, publisher: padres_tx.Client, subscriber: padres_tx.Client) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._sent = 0
        self._received = 0

    async def send(self) -> None:
        self._sent += 1
        await self._publisher.publish({"class": "job", "n": self._sent})

    async def send_and_receive_all(self) -> None:
        """Send one more, and look at each that was sent: none is missing or doubled."""
        await self.send()
        while self._received < self._sent:
            self._received += 1
            assert (await self._subscriber.next())["n"] == self._received


@asynccontextmanager
async def stream(shell: Shell, overlay: str) -> AsyncIterator[Stream]:
    brokers = shell.overlay(overlay).brokers
    async with (
        asyncio.timeout(PATIENCE_S),
        padres_tx.connect(brokers[0].address, name="E") as e,
        padres_tx.connect(brokers[-1].address, name="A") as a,
    ):
        await e.advertise(JOBS)
        await a.subscribe(JOBS)
        yield Stream(e, a)


async def command(shell: Shell, *arguments: object) -> str:
    """The output of a command that has to succeed, while clients go on."""
    return await asyncio.to_thread(shell.ok, *arguments)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("mode", ["memory", "disk"])
def test_clients_notice_nothing_of_planned_restarts(shell: Shell, mode: str) -> None:
    async def run() -> None:
        async with stream(shell, "three") as jobs:
            await jobs.send_and_receive_all()
            before = shell.overlay("three")
            for name in ("B2", "B1", "B3"):
                restarting = asyncio.create_task(command(shell, "broker", "restart", name))
                while not restarting.done():
                    await jobs.send()
                    await asyncio.sleep(0.01)
                printed = await restarting
                again = shell.overlay("three").broker(name).process
                assert printed == f"broker {name} restarted as process {again.pid}\n"
                assert again != before.broker(name).process
                assert processes.wait_gone([before.broker(name).process], 0) == []
            await jobs.send_and_receive_all()
            # All of them, as `up` does it.
            first = shell.overlay("three")
            again_all = command(shell, "up", "three", "--restart", "--durability", mode)
            restarting = asyncio.create_task(again_all)
            while not restarting.done():
                await jobs.send()
                await asyncio.sleep(0.01)
            assert "B3" in await restarting
            last = shell.overlay("three")
            assert all(last.broker(b.name).process != b.process for b in first.brokers)
            await jobs.send_and_receive_all()

    shell.ok("up", "three", "--durability", mode, "--detach", "--free-ports")
    try:
        asyncio.run(run())
    finally:
        shell.ok("down")
    if mode == "memory":
        # The end is for good: nothing is kept.
        left = (shell.files.directory / "three" / HANDED_ON).rglob("snap-*")
        assert list(left) == []
    text = json.dumps((shell.files.directory / "three" / "_launcher.log").read_text())
    assert "crash" not in text and "did not end cleanly" not in text


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_dead_brokers_are_started_again_and_nothing_is_lost(three: Shell) -> None:
    async def run() -> None:
        async with stream(three, "three") as jobs:
            await jobs.send_and_receive_all()
            os.kill(three.overlay("three").broker("B2").process.pid, signal.SIGKILL)
            await jobs.send()
            await asyncio.to_thread(
                until, lambda: three.overlay("three").broker("B2").exit_code is not None
            )
            assert "B2: down: killed by SIGKILL" in three.run("status").stdout
            await command(three, "broker", "restart", "B2")
            await jobs.send_and_receive_all()
            # All at once; the first is up although its neighbours are still dead.
            for broker in three.overlay("three").brokers:
                os.kill(broker.process.pid, signal.SIGKILL)
            await jobs.send()
            await command(three, "broker", "restart", "--all")
            await jobs.send_and_receive_all()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_broker_whose_state_was_removed_begins_anew(three: Shell) -> None:
    async def run() -> None:
        brokers = three.overlay("three").brokers
        async with (
            stream(three, "three") as jobs,
            padres_tx.connect(brokers[1].address, name="M") as forgotten,
        ):
            await jobs.send_and_receive_all()
            os.kill(brokers[1].process.pid, signal.SIGKILL)
            await asyncio.to_thread(
                until, lambda: three.overlay("three").broker("B2").exit_code is not None
            )
            shutil.rmtree(three.files.directory / "three" / "state" / "B2")
            await command(three, "broker", "restart", "B2")
            with pytest.raises(padres_tx.ConnectionLost, match="has forgotten this client"):
                await forgotten.next()
            # Its neighbours have told it the tables; this returns when they have.
            async with padres_tx.connect(brokers[0].address, name="N") as newcomer:
                await newcomer.advertise(JOBS)
            await jobs.send_and_receive_all()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_an_overlay_on_disk_goes_on_where_it_was(three: Shell, tmp_path: Path) -> None:
    async def run() -> None:
        async with stream(three, "three") as jobs:
            await jobs.send_and_receive_all()

    asyncio.run(run())
    before = durability(three)
    assert {each["mode"] for each in before.values()} == {"disk"}
    assert all(each["position"] > 0 for each in before.values())
    shown = three.ok("status") + three.ok("tables", "B2") + three.ok("tx", "ls")
    assert shown.count("snapshot at") == 3
    assert all(len(line.rstrip()) <= 80 for line in three.ok("tables", "B2").splitlines())
    assert json.loads(three.ok("tables", "B2", "--json"))["durability"]["mode"] == "disk"

    state = three.files.directory / "three" / "state"
    assert three.ok("down").splitlines() == [
        "overlay three stopped (3 brokers)",
        f"its state is kept in {state}; 'padres-tx down --overlay three --forget' removes it",
    ]
    assert sorted(path.name for path in state.iterdir()) == ["B1", "B2", "B3", ABOUT]

    # Before an upgrade, what a crash may have left in the log goes into a snapshot.
    for broker in ("B1", "B2", "B3"):
        printed = three.ok(
            *("broker", "three", broker),
            *("--durability", "disk", "--state", state / broker, "--checkpoint"),
        )
        assert printed == (
            f"broker {broker}: all of its log is in a snapshot now, in {state / broker}\n"
        )

    # A topology that does not fit is refused before anything happens.
    refused = three.refused("up", "five", "--name", "three", "--durability", "disk", "--free-ports")
    assert f"the state in {state} was made for another topology: broker B4 is new" in refused
    assert three.files.get("three") is None

    three.ok("up", "three", "--durability", "disk", "--detach", "--free-ports")
    after = durability(three)
    assert all(after[name]["position"] >= before[name]["position"] for name in before)
    asyncio.run(run())
    # Two overlays cannot use one state.
    line = three.refused(
        *("up", "three", "--name", "other", "--durability", "disk", "--free-ports"),
        *("--state", state),
    )
    assert "is in use by process" in line

    assert three.ok("down", "--forget").splitlines() == [
        "overlay three stopped (3 brokers)",
        f"its state was removed from {state}",
    ]
    assert not state.exists()
    assert "has no state" in three.refused("down", "--overlay", "three", "--forget")


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_state_stays_until_it_is_removed(shell: Shell) -> None:
    shell.ok("up", "one", "--durability", "disk", "--detach", "--free-ports")
    shell.ok("down")
    state = shell.files.directory / "one" / "state"
    in_memory = shell.run("up", "one", "--detach", "--free-ports")
    assert f"{state} is kept, but only disk mode uses it" in in_memory.stderr
    assert "state in" not in in_memory.stderr
    assert shell.ok("down") == "overlay one stopped (1 broker)\n"
    assert (state / "B1").is_dir()
    assert shell.ok("down", "--overlay", "one", "--forget") == (
        f"overlay one: its state was removed from {state}\n"
    )
    assert not state.exists()


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_broker_that_does_not_end_or_cannot_start_is_named(three: Shell) -> None:
    record = three.overlay("three")
    assert "no broker 'B9'; it has B1, B2, B3" in three.refused("broker", "restart", "B1", "B9")
    assert three.overlay("three") == record
    pid = record.broker("B2").process.pid
    os.kill(pid, signal.SIGSTOP)
    done = three.run("broker", "restart", "B2", "--timeout", "0.2")
    assert done.exit_code == 1
    assert (
        f"broker B2 is not up 0.2 s after it was asked to restart: process {pid} has not ended yet"
        in done.stderr
    )
    os.kill(pid, signal.SIGCONT)
    # The launcher goes on by itself.
    until(lambda: three.overlay("three").broker("B2").process.pid != pid)
    until(lambda: three.run("status").exit_code == 0)

    os.kill(three.overlay("three").broker("B2").process.pid, signal.SIGKILL)
    until(lambda: three.overlay("three").broker("B2").exit_code is not None)
    log = next((three.files.directory / "three" / "state" / "B2").glob("log-*"))
    log.write_bytes(b"not a log" + log.read_bytes())
    line = three.refused("broker", "restart", "B2")
    assert line == f"Error: broker B2 cannot start: {log}: not a file of a log\n"


def test_what_cannot_be_restarted_is_one_line(shell: Shell) -> None:
    assert "no overlay is running" in shell.refused("broker", "restart", "B1")
    assert "expected the names of brokers, or --all" in shell.refused("broker", "restart")
    assert "expected the names of brokers, or --all" in shell.refused(
        "broker", "restart", "B1", "--all"
    )


def test_disk_mode_and_its_directory_belong_together(shell: Shell, tmp_path: Path) -> None:
    assert "--state DIRECTORY" in shell.refused("broker", "one", "B1", "--durability", "disk")
    assert "nothing is stored" in shell.refused("broker", "one", "B1", "--checkpoint")
    assert "--state needs --durability disk" in shell.refused("up", "one", "--state", tmp_path)
