"""Which tests are run for a mutant of which module: those that are about it, the quick ones first.

The first pattern that fits a module counts. A survivor has passed all of these, and not the whole
suite: tests that only run through a module by the way are left out, since a fault that only they
notice is found late and explained badly.
"""

from __future__ import annotations

from fnmatch import fnmatch

#: The modules that mutants are drawn from.
MODULES = (
    "overlay/tables/*.py",
    "overlay/broker/*.py",
    "overlay/wire/*.py",
    "overlay/hosts/flow.py",
    "overlay/log/*.py",
    "overlay/matching/*.py",
    "padres_tx/protocol/*.py",
    "padres_tx/protocol/validation/*.py",
    "padres_tx/engines/*.py",
    "padres_tx/client/*.py",
    "padres_tx/client/asyncio/*.py",
    "padres_tx/client/blocking/*.py",
)

BROKER = (
    "tests/overlay/broker",
    "tests/overlay/tables",
    "tests/overlay/test_identity.py",
    "tests/overlay/hosts/test_host.py",
)

#: One broker and one message at a time: most of what can go wrong in engines.
STEPS = (
    "tests/paper/test_paper_d_tx.py",
    "tests/paper/test_paper_d_tx_ni.py",
    "tests/paper/test_paper_s_tx.py",
    "tests/protocol",
)

#: Whole overlays, by chance.
RUNS = (
    "tests/engines/test_dispatching.py",
    "tests/engines/test_cut_off.py",
    "tests/engines/test_restart.py",
    "tests/engines/test_contract.py",
    "tests/proofs/faults",
)

CLIENT = (
    "tests/client/test_session.py",
    "tests/client/test_holdings.py",
    "tests/client/test_transactions.py",
    "tests/client/asyncio/test_client.py",
    "tests/client/asyncio/test_waiting.py",
    "tests/client/asyncio/test_transactions.py",
    "tests/client/asyncio/test_tcm_handlers.py",
    "tests/client/asyncio/test_transaction_endings.py",
    "tests/client/asyncio/test_drained.py",
    "tests/client/asyncio/test_callback_errors.py",
    "tests/client/asyncio/test_on_close.py",
    "tests/client/test_bad_input.py",
    "tests/client/test_drained_names.py",
    "tests/client/test_bl_wait.py",
)

NETWORK = (
    "tests/client/asyncio/test_connecting.py",
    "tests/client/asyncio/test_channel_endings.py",
    "tests/client/asyncio/test_tcp.py",
    "tests/client/asyncio/test_uvloop.py",
)

COVERING: dict[str, tuple[str, ...]] = {
    "overlay/matching/*": ("tests/overlay/matching", "tests/overlay/tables"),
    "overlay/wire/codec.py": ("tests/overlay/wire", "tests/fuzz/test_neighbours.py"),
    "overlay/wire/*": ("tests/overlay/wire", "tests/overlay/hosts/test_strangers.py", *NETWORK),
    "overlay/hosts/flow.py": (
        "tests/overlay/hosts/test_host.py",
        "tests/overlay/hosts/test_tcp.py",
    ),
    "overlay/log/*": ("tests/overlay/log",),
    "overlay/tables/footprints.py": ("tests/protocol/test_conflicts.py", *STEPS, *RUNS),
    "overlay/tables/reads.py": (
        "tests/overlay/tables/test_reads.py",
        "tests/protocol/test_conflicts.py",
        *STEPS,
        *RUNS,
    ),
    "overlay/tables/*": (*BROKER, *STEPS, *RUNS),
    "overlay/broker/*": (*BROKER, *STEPS, *RUNS),
    "padres_tx/protocol/inspection.py": (*STEPS, "tests/cli/test_tx.py"),
    "padres_tx/protocol/*": (*STEPS, *RUNS),
    "padres_tx/engines/bl_wait.py": ("tests/client/test_bl_wait.py", *RUNS),
    "padres_tx/engines/*": (*STEPS, *RUNS),
    "padres_tx/client/asyncio/channel.py": (*NETWORK, "tests/client/asyncio/test_on_close.py"),
    "padres_tx/client/asyncio/*": (*CLIENT, *NETWORK),
    "padres_tx/client/blocking/*": (
        "tests/client/blocking/test_client.py",
        "tests/client/blocking/test_transactions.py",
        "tests/client/asyncio/test_on_close.py",
        "tests/client/asyncio/test_callback_errors.py",
        "tests/client/asyncio/test_tcp.py",
    ),
    "padres_tx/client/operations.py": ("tests/protocol/test_static.py", *CLIENT),
    "padres_tx/client/static_plan.py": ("tests/protocol/test_static.py", *CLIENT),
    "padres_tx/client/asking.py": ("tests/protocol/test_outcomes.py", *CLIENT),
    "padres_tx/client/*": (*CLIENT, "tests/client/test_beliefs.py", "tests/protocol/test_looks.py"),
}


def covering(module: str) -> tuple[str, ...]:
    """The tests for a module. Raises KeyError if nobody has said which."""
    for pattern, tests in COVERING.items():
        if fnmatch(module, pattern):
            return tuple(dict.fromkeys(tests))
    raise KeyError(f"no tests are named for {module}")
