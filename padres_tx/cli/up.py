"""`padres-tx up` and `down`: an overlay of this machine, from its start to its end.

Only arguments and exit codes are dealt with here; starting and following is the `supervisor`'s,
where overlays are written down is `state`'s, and how they are shown is `status`'s.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import click

from padres_tx.cli.common import CheckFailed, WrongInput, say
from padres_tx.cli.status import show_overlay
from padres_tx.launcher import processes
from padres_tx.launcher.overlay_files import OverlayRecord, Registry, check_name
from padres_tx.launcher.overlay_processes import (
    KILL_S,
    LOOK_S,
    STOP_S,
    UP_S,
    on_loopback,
    with_free_ports,
)
from padres_tx.launcher.supervisor import LAUNCHER_LOG, Supervisor
from topologies import load

#: What a launcher in the background may need beside the time for its overlay: its own start, and
#: ending everything if that failed.
LAUNCHER_S = 10.0 + STOP_S + KILL_S

_name_option = click.option(
    "--name",
    "--overlay",
    "name",
    metavar="NAME",
    help="Which overlay is meant. [default: the only one]",
)


# --- up ---


@click.command(
    epilog="""
\b
Examples:
  padres-tx up three
  padres-tx up mine.yaml --restart
  padres-tx up nine --detach --name second --free-ports --json
"""
)
@click.argument("topology", metavar="TOPOLOGY")
@click.option(
    "--name",
    "--overlay",
    "name",
    metavar="NAME",
    help="What to call the overlay. [default: the topology's name]",
)
@click.option("-d", "--detach", is_flag=True, help="Return when it is up, and let it run on.")
@click.option("--restart", is_flag=True, help="Restart a broker that dies.")
@click.option("--free-ports", is_flag=True, help="Take any free ports, not the topology's.")
@click.option("--trace", is_flag=True, help="Let every broker write a trace, beside its log.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=UP_S,
    show_default=True,
    metavar="SECONDS",
    help="How long it may take until every link is up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the brokers as JSON once it is up.")
def up(
    topology: str,
    *,
    name: str | None,
    detach: bool,
    restart: bool,
    free_ports: bool,
    trace: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Start the brokers of TOPOLOGY, one process each, on this machine.

    TOPOLOGY is one, three, five, nine, or a .yaml, .yml or .json file. Brokers listen on the
    loopback interface, at the topology's ports; port 0 means any free one. When every link is up,
    a table shows them. Then the command stays, says when a broker dies, and ends all of them on
    Ctrl-C.
    """
    tree = load(topology)
    called = check_name(tree.name if name is None else name)
    registry = Registry(notice=say)
    if detach:
        registry.check_free(called)
        flags = {"--restart": restart, "--free-ports": free_ports, "--trace": trace}
        options = [flag for flag, given in flags.items() if given]
        options += ["--name", called, "--timeout", str(timeout_s)]
        record = _start_detached(registry, called, [*options, "--", topology], timeout_s)
        _announce(record, as_json, f"'padres-tx down --name {called}' ends it")
        return

    here = with_free_ports(tree) if free_ports else on_loopback(tree)
    moved = [b.name for b, there in zip(here.brokers, tree.brokers, strict=True) if b != there]
    if moved and not free_ports:
        say(f"{', '.join(moved)}: on the loopback interface here, not where {topology} says")
    supervisor = Supervisor(called, here, registry, say, restart=restart, trace=trace)
    supervisor.run(timeout_s, lambda record: _announce(record, as_json, "Ctrl-C ends it"))
    say(f"overlay {called} has ended")


def _announce(record: OverlayRecord, as_json: bool, how_to_end: str) -> None:
    show_overlay(record, as_json=as_json)
    say(f"overlay {record.name} is up; logs in {record.directory}; {how_to_end}")


def _start_detached(
    registry: Registry, name: str, arguments: list[str], timeout_s: float
) -> OverlayRecord:
    """Run `up` in the background, and wait until its overlay is up.

    Raises WrongInput or CheckFailed, with what it has to say, if it ends instead.
    """
    log = registry.directory_of(name) / LAUNCHER_LOG
    with log.open("wb") as output:
        launcher = subprocess.Popen(
            # -P: a directory of our name where the user happens to be must not be taken for ours.
            [sys.executable, "-P", "-m", "padres_tx.cli.main", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + timeout_s + LAUNCHER_S
        while True:
            record = registry.get(name)
            if record and record.launcher.pid == launcher.pid and record.phase == "up":
                return record
            if launcher.poll() is not None:
                said = log.read_text(encoding="utf-8", errors="replace")
                reason = said.rpartition("Error: ")[2].strip() or f"it has ended; log: {log}"
                wrong_input = launcher.returncode == WrongInput.exit_code
                raise (WrongInput if wrong_input else CheckFailed)(reason)
            if time.monotonic() >= deadline:
                raise CheckFailed(f"the launcher does not get on; log: {log}")
            time.sleep(LOOK_S)
    except BaseException:
        launcher.terminate()
        try:
            launcher.wait(STOP_S + KILL_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
        raise


# --- down ---


@click.command(
    epilog="""
\b
Examples:
  padres-tx down
  padres-tx down --name second
"""
)
@_name_option
def down(*, name: str | None) -> None:
    """End a running overlay, wherever it was started."""
    registry = Registry(notice=say)
    record = registry.find(name, option="--name")
    processes.send(record.launcher, signal.SIGTERM)
    if processes.wait_gone([record.launcher], STOP_S + KILL_S):
        say(f"its launcher (process {record.launcher.pid}) does not end, and is killed")
        processes.send(record.launcher, signal.SIGKILL)
        processes.wait_gone([record.launcher], KILL_S)
        registry.remove(record)
    click.echo(f"overlay {record.name} has ended, and its {len(record.brokers)} broker(s) with it")
