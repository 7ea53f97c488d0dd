"""`padres-tx` as people run it: commands as processes, against overlays of processes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from padres_tx.cli.main import COMMANDS, main
from padres_tx.launcher import overlay_files, processes
from padres_tx.launcher.overlay_files import OverlayFiles, OverlayRecord
from padres_tx.launcher.processes import ProcessIdentity

#: For everything that is waited for: far beyond what it takes, so that only a hang meets it.
WAIT_S = 60.0

COMMAND = (sys.executable, "-P", "-m", "padres_tx.cli.main")


class Started:
    """A command that runs as a process; it does not outlive its `with`."""

    def __init__(self, arguments: tuple[object, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._unread: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()

    def line_with(self, text: str, stream: str = "stderr") -> str:
        """Read on to the line with this text."""
        pipe: IO[bytes] = getattr(self.process, stream)
        while True:
            line, newline, rest = self._unread[stream].partition(b"\n")
            if newline:
                self._unread[stream] = rest
                if text in line.decode():
                    return line.decode()
                continue
            assert select.select([pipe], [], [], WAIT_S)[0], f"no {text!r} in {line!r}"
            more = os.read(pipe.fileno(), 4096)
            assert more, f"no {text!r} in {line!r}"
            self._unread[stream] += more

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: the exit code, and the rest of what it has printed and told."""
        printed, told = self.process.communicate(timeout=WAIT_S)
        unread = self._unread
        return (
            self.process.returncode,
            (unread["stdout"] + printed).decode(),
            (unread["stderr"] + told).decode(),
        )


class Shell:
    """A terminal of a user with a state directory of their own."""

    def __init__(self, directory: Path, columns: int = 200) -> None:
        self.files = OverlayFiles(directory)
        self._settings = {overlay_files.DIRECTORY_ENV: str(directory), "COLUMNS": str(columns)}

    def start(self, *arguments: object) -> Started:
        return Started(arguments, {**os.environ, **self._settings})

    def run(self, *arguments: object) -> Result:
        """The same command within this process, which saves its start."""
        result = CliRunner().invoke(main, [str(a) for a in arguments], env=self._settings)
        # Anything but a clean exit is a traceback to the user.
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    def ok(self, *arguments: object) -> str:
        """The output of a command that has to succeed."""
        done = self.run(*arguments)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: object) -> str:
        """The one line of a command that has to be refused."""
        done = self.run(*arguments)
        assert (done.exit_code, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def overlay(self, name: str) -> OverlayRecord:
        record = self.files.get(name)
        assert record is not None
        return record


def processes_of(record: OverlayRecord) -> list[ProcessIdentity]:
    return [record.launcher, *(broker.process for broker in record.brokers)]


def until(condition: Callable[[], Any]) -> None:
    """Wait for what another process is about to do."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "state")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which the overlay three runs in the background: up, status and down of it all."""
    shell = Shell(tmp_path_factory.mktemp("three") / "state")
    with shell.start("up", "three", "--detach", "--free-ports", "--json") as up:
        code, printed, told = up.end()
    assert code == 0, told
    record = shell.overlay("three")
    assert str(record.directory) in told
    assert [broker["pid"] for broker in json.loads(printed)["brokers"]] == [
        broker.process.pid for broker in record.brokers
    ]
    assert all(map(processes.alive, processes_of(record)))
    yield shell
    with shell.start("down") as down:
        assert down.end() == (0, "overlay three stopped (3 brokers)\n", "")
    assert processes.wait_gone(processes_of(record), 0) == []
    assert "no overlay is running" in shell.refused("status")
    # Logs stay, for whoever wants to know.
    assert "listening" in Path(record.brokers[0].log).read_text()


# --- a running overlay ---


def test_status_for_people_and_programs(three: Shell) -> None:
    table = three.ok("status")
    assert all(name in table for name in ("B1", "B2", "B3", "neighbours", "clients"))
    told = json.loads(three.ok("status", "--overlay", "three", "--json"))
    record = three.overlay("three")
    assert (told["name"], told["phase"]) == ("three", "up")
    assert told["launcher_pid"] == record.launcher.pid
    assert [(b["name"], b["state"], b["neighbours"]) for b in told["brokers"]] == [
        ("B1", "up", ["B2"]),
        ("B2", "up", ["B1", "B3"]),
        ("B3", "up", ["B2"]),
    ]


def test_a_second_overlay_of_the_same_name_is_refused(three: Shell) -> None:
    assert "three is already running" in three.refused("up", "three")
    assert "three is already running" in three.refused("up", "one", "--name", "three", "--detach")


def test_a_subscriber_gets_what_a_publisher_publishes(three: Shell) -> None:
    with three.start(
        "sub", "[class,eq,'order'],[price,>,100]", "--broker", "B3", "--json", "--count", "2"
    ) as subscriber:
        subscriber.line_with("at B3 ")
        for price, payload in ((150, "héllo"), (99, "too cheap"), (200, "last")):
            publication = f"[class,'order'],[price,{price}]"
            three.ok("pub", publication, "--payload", payload, "--as", f"E{price}")
        code, printed, _ = subscriber.end()
    assert code == 0
    assert [
        (line["publisher"], line["point"], line["payload"])
        for line in map(json.loads, printed.splitlines())
    ] == [
        ("E150", {"class": "order", "price": 150}, "héllo"),
        ("E200", {"class": "order", "price": 200}, "last"),
    ]


def test_a_line_for_people_until_ctrl_c(three: Shell) -> None:
    with three.start("sub", "[class,eq,'note']", "--as", "A1") as subscriber:
        subscriber.line_with("stop it with Ctrl-C")
        assert "sub, events only" in three.ok("tables", "B1"), "who looks on takes no tcms"
        with three.start("pub", "[class,'note']", "--json-payload", '{"a":[1]}', "--as", "E") as e:
            assert e.end()[:2] == (0, "")
        line = subscriber.line_with("note", stream="stdout")
        assert line == "[class,'note']  from E  {\"a\": [1]}"
        subscriber.signal(signal.SIGINT)
        assert subscriber.end() == (0, "", "")


def test_fewer_than_counted_on_is_a_failed_check(three: Shell) -> None:
    done = three.run("sub", "[class,eq,'none']", "--count", "1", "--timeout", "0.1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "Error: 0 of 1 publications arrived within 0.1 s"
    assert three.ok("sub", "[class,eq,'none']", "--timeout", "0.1") == ""


def test_an_advertisement_stands_in_the_tables_until_it_ends(three: Shell) -> None:
    with three.start("adv", "[class,eq,'held']", "--as", "holder") as holder:
        holder.line_with("advertises")
        told = json.loads(three.ok("tables", "B3", "--json"))
        assert told["broker"] == "B3"
        assert [(e["client"], e["kind"], e["filter"], e["hop"]) for e in told["srt"]] == [
            ("holder", "adv", "[class,eq,'held']", "B2")
        ]
        assert {"client": "holder", "edge": "B1", "hop": "B2"} in told["clients"]
        address = three.overlay("three").broker("B1").address
        table = three.ok("tables", "--at", address)
        assert "broker B1" in table and "@holder" in table and "[class,eq,'held']" in table
        # The name is taken, everywhere.
        assert "holder" in three.refused("pub", "[class,'x']", "--as", "holder", "--broker", "B3")
        holder.signal(signal.SIGTERM)
        assert holder.end()[0] == 0
    until(lambda: json.loads(three.ok("tables", "B3", "--json"))["srt"] == [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("sub", "[class,neq,'x']"), "neq"),
        (("sub", "nonsense"), "expected '['"),
        (("pub", "[class,eq,'x']"), "class"),
        (("pub", "[class,'x']", "--json-payload", "{"), "invalid --json-payload"),
        (("pub", "[class,'x']", "--payload", "a", "--json-payload", "1"), "cannot be combined"),
        (("pub", "[class,'x']", "--as", "no name"), "no name"),
        (("pub", "[class,'x']", "--broker", "B9"), "no broker 'B9'; it has B1, B2, B3"),
        (("pub", "[class,'x']", "--overlay", "four"), "no overlay named four"),
        (("pub", "[class,'x']", "--at", "nowhere"), "host:port"),
        (("pub", "[class,'x']", "--at", "h:1", "--broker", "B1"), "--at"),
        (("tables",), "no broker given"),
        (("status", "--overlay", "four"), "running: three"),
        (("down", "--overlay", "four"), "running: three"),
    ],
)
def test_wrong_input_is_one_line(three: Shell, arguments: tuple[str, ...], reason: str) -> None:
    assert reason in three.refused(*arguments)


def test_nobody_there_is_one_line(three: Shell) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert f"no broker at {at}" in three.refused("tables", "--at", at)


# --- up: how it begins, what it tells, how it ends ---


def test_a_crash_is_told_and_ctrl_c_leaves_nothing(shell: Shell) -> None:
    with shell.start("up", "three", "--free-ports", "--name", "mine") as up:
        assert str(shell.files.directory) in up.line_with("overlay mine is up")
        before = shell.overlay("mine")
        os.kill(before.broker("B2").process.pid, signal.SIGKILL)
        assert "killed by SIGKILL" in up.line_with("broker B2 (process")
        up.line_with("broker B2 is down; the other brokers keep running")
        until(lambda: shell.overlay("mine").broker("B2").exit_code == -signal.SIGKILL)

        def told() -> list[tuple[str, str, str]]:
            done = shell.run("status", "--json")
            assert done.exit_code == 1
            brokers = json.loads(done.stdout)["brokers"]
            return [(b["name"], b["state"], b["problem"]) for b in brokers]

        # The neighbours find out for themselves.
        until(lambda: [state for _, state, _ in told()] == ["linking", "down", "linking"])
        assert told() == [
            ("B1", "linking", "no link to B2"),
            ("B2", "down", "killed by SIGKILL"),
            ("B3", "linking", "no link to B2"),
        ]

        up.signal(signal.SIGINT)
        code, printed, told_last = up.end()
    assert (code, told_last) == (0, "overlay mine stopped\n")
    assert all(name in printed for name in ("broker", "address", "neighbours", "pid", "state"))
    assert processes.wait_gone(processes_of(before), 0) == []
    assert list(shell.files.directory.glob("*.json")) == []


def test_a_broker_that_dies_is_restarted_if_asked_for(shell: Shell) -> None:
    with shell.start("up", "one", "--free-ports", "--restart") as up:
        up.line_with("overlay one is up")
        first = shell.overlay("one").broker("B1")
        os.kill(first.process.pid, signal.SIGKILL)
        up.line_with("broker B1 restarted as process")
        until(lambda: shell.run("status").exit_code == 0)
        second = shell.overlay("one").broker("B1")
        assert (second.address, second.exit_code) == (first.address, None)
        assert second.process != first.process
        up.signal(signal.SIGTERM)
        assert up.end()[0] == 0
    assert processes.wait_gone([first.process, second.process], 0) == []


def test_brokers_end_with_a_launcher_that_is_killed(shell: Shell) -> None:
    with shell.start("up", "one", "--free-ports") as up:
        up.line_with("overlay one is up")
        record = shell.overlay("one")
        up.signal(signal.SIGKILL)
        up.end()
    assert processes.wait_gone(processes_of(record), WAIT_S) == []
    # What it has left is found, told of and removed.
    done = shell.run("status")
    assert done.exit_code == 2
    notice, error = done.stderr.splitlines()
    assert "one" in notice and "removed" in notice
    assert "no overlay is running" in error
    assert "no overlay is running" in shell.refused("down")


def test_a_truncated_state_file_hides_nothing(shell: Shell) -> None:
    with shell.start("up", "one", "--free-ports") as up:
        up.line_with("overlay one is up")
        file = shell.files.directory / "one.json"
        file.write_bytes(b"")
        # With a notice, unless the launcher has written it again by now.
        done = shell.run("status", "--json")
        assert done.exit_code == 0 and (str(file) in done.stderr or file.read_bytes())
        assert [b["state"] for b in json.loads(done.stdout)["brokers"]] == ["up"]
        assert shell.run("down").exit_code == 0
        assert up.end()[0] == 0
    assert list(shell.files.directory.glob("**/*state*.json")) == []


def test_an_overlay_is_found_although_its_state_file_and_the_copy_are_damaged(
    shell: Shell,
) -> None:
    with shell.start("up", "one", "--free-ports") as up:
        up.line_with("overlay one is up")
        for file in ("one.json", f"one/{overlay_files.COPY}"):
            (shell.files.directory / file).write_bytes(b"{")
        up.line_with("the state file of overlay one was damaged; written again")
        assert "up" in shell.ok("status")
        shell.ok("down")
        assert up.end()[0] == 0


def test_ctrl_c_before_it_is_up_leaves_nothing(shell: Shell) -> None:
    with shell.start("up", "three", "--free-ports") as up:
        until(lambda: (record := shell.files.get("three")) and record.brokers)
        record = shell.overlay("three")
        up.signal(signal.SIGINT)
        code, _, told = up.end()
    # 0 if the machine was so quick that it was up by then.
    assert (code, "Error: stopped before" in told) in ((1, True), (0, False))
    assert processes.wait_gone(processes_of(record), 0) == []
    assert shell.files.get("three") is None


def test_several_overlays_have_to_be_told_apart(three: Shell) -> None:
    three.ok("up", "one", "-d", "--free-ports", "--name", "second")
    record = three.overlay("second")
    try:
        assert "several overlays are running (second, three)" in three.refused("status")
        assert "with --overlay" in three.refused("pub", "[class,'x']")
        three.ok("pub", "[class,'x']", "--overlay", "second")
        three.ok("status", "--overlay", "second")
        three.ok("tx", "ls", "--overlay", "second")
    finally:
        three.ok("down", "--overlay", "second")
    assert processes.wait_gone(processes_of(record), 0) == []


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_busy_port_is_named_with_its_broker(
    shell: Shell, tmp_path: Path, detach: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "busy.yaml"
        file.write_text(
            f"name: busy\nbrokers: [{{name: B1, port: 0}}, {{name: B2, port: {port}}}]\n"
            "edges: [[B1, B2]]\n"
        )
        line = shell.refused("up", file, *detach)
    assert f"broker B2 cannot listen at 127.0.0.1:{port}" in line and "in use" in line
    assert shell.files.get("busy") is None


def test_what_is_no_topology_is_refused(shell: Shell, tmp_path: Path) -> None:
    ring = tmp_path / "ring.yaml"
    ring.write_text(
        "name: ring\nbrokers: [{name: B1, port: 0}, {name: B2, port: 0}, {name: B3, port: 0}]\n"
        "edges: [[B1, B2], [B2, B3], [B3, B1]]\n"
    )
    assert "cycle, B1-B2-B3-B1" in shell.refused("up", ring)
    assert "no such file" in shell.refused("up", tmp_path / "none.yaml", "--detach")
    assert "did you mean three?" in shell.refused("up", "thre")
    assert "invalid overlay name" in shell.refused("up", "one", "--name", "a/b")


# --- the first look ---


@pytest.mark.slow
def test_the_demo_shows_who_got_what_and_ends_cleanly(shell: Shell) -> None:
    with shell.start("demo", "--story") as demo:
        code, shown, _ = demo.end()
    assert code == 0
    assert "✓ warehouse  received it through B1 → B2 → B3: subscribed to [class" in shown
    assert "✗ manager    did not: does not match [price,>,100]" in shown
    assert "✗ warehouse  did not: un-subscribed from [class,eq,'order'],[price,>,100]" in shown
    assert "all brokers have stopped" in shown and "!" not in shown
    pids = [int(pid) for pid in re.findall(r"process (\d+)", shown)]
    assert len(pids) == 3
    assert not any(map(processes.identify, pids))


# --- the group of commands ---


def test_help_shows_the_commands_and_version_the_version() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)
    assert re.fullmatch(r"padres-tx, version \S+\n", CliRunner().invoke(main, ["--version"]).stdout)


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"topology"}))
def test_every_command_has_help_with_examples(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert f"\n    padres-tx {command}" in result.stdout
    assert "\b" not in result.stdout


def test_a_misspelt_command_is_guessed() -> None:
    result = CliRunner().invoke(main, ["pup", "x"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: unknown command 'pup'; did you mean ")


def test_a_plug_in_that_cannot_be_loaded_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fine_plug_in.py").write_text(
        "import click\n\n@click.command()\ndef fine():\n    click.echo('fine it is')\n"
    )
    (tmp_path / "broken_plug_in.py").write_text("import no_such_module\n")
    about = tmp_path / "plug_ins-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-ins\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[padres_tx.commands]\n"
        "fine = fine_plug_in:fine\n"
        "broken = broken_plug_in:broken\n"
        "module = fine_plug_in\n"
        "demo = broken_plug_in:demo\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, list(arguments))
        return result.exit_code, result.output

    assert run("fine") == (0, "fine it is\n")
    code, told = run("broken", "--any", "argument")
    assert code == 2 and told.count("\n") == 1
    assert "command broken (broken_plug_in:broken)" in told and "no_such_module" in told
    assert run("module") == (
        2,
        "Error: the command module (fine_plug_in) cannot be loaded: "
        "expected a click command, got a module\n",
    )
    code, told = run("--help")
    assert code == 0 and "(cannot be loaded: ModuleNotFoundError" in told
    # Ours counts.
    assert run("demo", "--help")[0] == 0
