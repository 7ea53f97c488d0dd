"""`padres-tx up` and `down`: start and stop an overlay on this machine.

This module handles arguments and exit codes; `launcher.supervisor` starts and watches the overlay,
`launcher.overlay_files` keeps its state file, and `cli.status` prints it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import click

from padres_tx.cli.common import (
    CheckFailed,
    WrongInput,
    durability_option,
    note,
    overlay_option,
)
from padres_tx.cli.restart import restart_brokers
from padres_tx.cli.status import show_overlay
from padres_tx.launcher import processes, state_directories
from padres_tx.launcher.overlay_files import OverlayFiles, OverlayRecord, check_name
from padres_tx.launcher.overlay_processes import (
    KILL_S,
    LOOK_S,
    STOP_S,
    UP_S,
    on_loopback,
    with_free_ports,
)
from padres_tx.launcher.state_directories import default_state
from padres_tx.launcher.supervisor import LAUNCHER_LOG, Supervisor
from topologies import Durability, load

#: The time that a detached launcher may take in addition to the start of its overlay: its own
#: start, and stopping everything if that failed.
LAUNCHER_S = 10.0 + STOP_S + KILL_S


# --- up ---


@click.command(
    epilog="""
\b
Examples:
  padres-tx up three
  padres-tx up mine.yaml --restart
  padres-tx up five --durability disk
  padres-tx up nine --detach --name second --free-ports --json
"""
)
@click.argument("topology", metavar="TOPOLOGY")
@click.option(
    "--name",
    metavar="NAME",
    help="The name of the overlay. [default: the topology's name]",
)
@click.option(
    "-d", "--detach", is_flag=True, help="Return when the overlay is up; it keeps running."
)
@click.option(
    "--restart",
    is_flag=True,
    help="Restart brokers that crash. If the overlay is running already, restart all its brokers "
    "instead, one after the other.",
)
@durability_option
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Where brokers in disk mode keep their state. [default: one for each overlay's name]",
)
@click.option("--free-ports", is_flag=True, help="Use free ports instead of the topology's.")
@click.option("--trace", is_flag=True, help="Write a trace of every broker beside its log.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=UP_S,
    show_default=True,
    metavar="SECONDS",
    help="Give up if not every link is up after this time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the brokers as JSON.")
def up(
    topology: str,
    *,
    name: str | None,
    detach: bool,
    restart: bool,
    durability: Durability | None,
    state: Path | None,
    free_ports: bool,
    trace: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Start the brokers of TOPOLOGY on this machine, one process each.

    TOPOLOGY is one, three, five, nine, or a .yaml, .yml or .json file. Brokers listen on the
    loopback interface, on the topology's ports; port 0 means a free port. When every link is up,
    the command prints a table of the brokers. It then keeps running, reports brokers that crash,
    and stops all brokers on Ctrl-C.

    In disk mode, brokers go on with what they stored when an overlay of this name ran before.
    """
    tree = load(topology)
    if durability is not None:
        tree = tree.model_copy(update={"durability": durability})
    chosen = check_name(tree.name if name is None else name)
    if tree.durability == "disk":
        state = default_state(chosen) if state is None else state.absolute()
    elif state is not None:
        raise WrongInput("--state needs --durability disk: in memory mode nothing is kept")
    elif (left := default_state(chosen)).exists():
        note(f"the state of overlay {chosen} in {left} is kept, but only disk mode uses it")
    files = OverlayFiles(notice=note)
    if restart and (running := files.if_running(chosen)):
        restart_brokers(files, running, [broker.name for broker in running.brokers])
        running = files.find(chosen)  # The brokers are other processes now.
        _announce(running, as_json, f"stop it with 'padres-tx down --overlay {chosen}'")
        return
    if detach:
        files.check_free(chosen)
        flags = {"--restart": restart, "--free-ports": free_ports, "--trace": trace}
        options = [flag for flag, given in flags.items() if given]
        options += ["--name", chosen, "--timeout", str(timeout_s), "--durability", tree.durability]
        options += [] if state is None else ["--state", str(state)]
        record = _start_detached(files, chosen, [*options, "--", topology], timeout_s)
        _announce(record, as_json, f"stop it with 'padres-tx down --overlay {chosen}'")
        return

    here = with_free_ports(tree) if free_ports else on_loopback(tree)
    moved = [b.name for b, there in zip(here.brokers, tree.brokers, strict=True) if b != there]
    if moved and not free_ports:
        note(f"{', '.join(moved)}: on the loopback interface instead of the address in {topology}")
    supervisor = Supervisor(chosen, here, files, note, restart=restart, trace=trace, state=state)
    supervisor.run(timeout_s, lambda record: _announce(record, as_json, "stop it with Ctrl-C"))
    note(f"overlay {chosen} stopped")


def _announce(record: OverlayRecord, as_json: bool, how_to_stop: str) -> None:
    show_overlay(record, as_json=as_json)
    kept = f"; state in {record.state}" if record.state else ""
    note(f"overlay {record.name} is up; logs in {record.directory}{kept}; {how_to_stop}")


def _start_detached(
    files: OverlayFiles, name: str, arguments: list[str], timeout_s: float
) -> OverlayRecord:
    """Run `up` in the background, and wait until its overlay is up.

    Raises WrongInput or CheckFailed, with its error message, if it ends instead.
    """
    log = files.directory_of(name) / LAUNCHER_LOG
    with log.open("wb") as log_file:
        launcher = subprocess.Popen(
            # -P: a directory of our name in the user's current directory must not shadow ours.
            [sys.executable, "-P", "-m", "padres_tx.cli.main", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + timeout_s + LAUNCHER_S
        while True:
            record = files.get(name)
            if record and record.launcher.pid == launcher.pid and record.phase == "up":
                return record
            if launcher.poll() is not None:
                output = log.read_text(encoding="utf-8", errors="replace")
                reason = output.rpartition("Error: ")[2].strip() or f"the launcher ended; see {log}"
                wrong_input = launcher.returncode == WrongInput.exit_code
                raise (WrongInput if wrong_input else CheckFailed)(reason)
            if time.monotonic() >= deadline:
                raise CheckFailed(f"the launcher is not making progress; see {log}")
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
  padres-tx down --overlay second
  padres-tx down --overlay second --forget
"""
)
@overlay_option
@click.option("--forget", is_flag=True, help="Remove what brokers in disk mode have stored.")
def down(*, overlay: str | None, forget: bool) -> None:
    """Stop a running overlay that was started on this machine with 'padres-tx up'.

    Clients are told that their brokers close. In disk mode the brokers' state is kept, and the next
    'padres-tx up' of that name goes on with it; with --forget it is removed, even if the overlay
    has been stopped before.
    """
    files = OverlayFiles(notice=note)
    if forget and overlay is not None and files.if_running(overlay) is None:
        state = default_state(overlay)
        if not state_directories.forget(state):
            raise WrongInput(f"overlay {overlay} is not running and has no state in {state}")
        click.echo(f"overlay {overlay}: its state was removed from {state}")
        return
    record = files.find(overlay)
    processes.send(record.launcher, signal.SIGTERM)
    if processes.wait_gone([record.launcher], STOP_S + KILL_S):
        note(f"killing the launcher (process {record.launcher.pid}), which does not stop")
        processes.send(record.launcher, signal.SIGKILL)
        processes.wait_gone([record.launcher], KILL_S)
        files.remove(record)
    count = len(record.brokers)
    click.echo(f"overlay {record.name} stopped ({count} broker{'' if count == 1 else 's'})")
    if record.state and forget:
        state_directories.forget(Path(record.state))
        click.echo(f"its state was removed from {record.state}")
    elif record.state:
        click.echo(
            f"its state is kept in {record.state}; 'padres-tx down --overlay {record.name} "
            "--forget' removes it"
        )
