"""Overlays as processes of this machine: start them, look after them, find them again, end them.

    with padres_tx.launcher.overlay("three") as running:
        async with padres_tx.connect(running.address("B1")) as client: ...

Rule: may import clients, to ask brokers how they are, and topologies; knows no command line, and
brokers only as programs to start.
"""

from padres_tx.launcher.overlay_processes import (
    Cancelled,
    Crash,
    LaunchError,
    PortBusy,
    Running,
    launch,
    on_loopback,
    overlay,
    with_free_ports,
)

__all__ = [
    "Cancelled",
    "Crash",
    "LaunchError",
    "PortBusy",
    "Running",
    "launch",
    "on_loopback",
    "overlay",
    "with_free_ports",
]
