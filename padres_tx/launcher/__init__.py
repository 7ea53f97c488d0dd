"""Overlays as processes on this machine: start, watch, find and stop them.

    with padres_tx.launcher.overlay("three") as running:
        async with padres_tx.connect(running.address("B1")) as client: ...

Rule: may import clients, to query brokers, and topologies; must not know the command line, and
knows brokers only as programs to start.
"""

from padres_tx.launcher.overlay_processes import (
    BrokerRefused,
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
    "BrokerRefused",
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
