"""What can differ between broker processes, with defaults that are right outside of tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlay.wire.link import HEARTBEAT_S, IDLE_S, OUTBOX_BYTES, OUTBOX_MESSAGES

#: A connection that has not said hello by then is not one of ours, or is stuck.
HELLO_TIMEOUT_S = 5.0

#: Connections that have not said hello, in total and from one address: a program may connect
#: thousands of clients before the first of them says hello. Each costs a file, 2 KiB, and at most
#: HELLO_LIMIT of what it has sent, so all of them together about 25 MiB.
PENDING_CONNECTIONS = 4096
PENDING_PER_ADDRESS = 3072

#: Connections that the kernel may hold for a broker between two turns of its reactor.
BACKLOG = 512

#: Clients of one broker, if its files allow so many: with more it is busy with their signs of life
#: alone. Operators look for a moment, one a person or program.
CLIENT_CONNECTIONS = 50_000
OPERATOR_CONNECTIONS = 64

#: Files beside the connections of clients: log, trace, standard streams, libraries that are read
#: while the process runs, the reactor's own, and neighbours.
FILES_RESERVED = 128

#: Bytes of a secret; a hello with it has to fit into HELLO_LIMIT.
SECRET_LIMIT_BYTES = 1024

#: A neighbour without a connection for so long is absent: nobody waits for it any more. Longer than
#: a connection takes to be made again, also on a busy machine, so that short breaks go unnoticed;
#: short enough that a call that waits for it is not given up.
ABSENT_AFTER_S = 1.0

#: How long a client that lost its connection keeps its entries and its queue: enough for a broken
#: connection or a changed network, short enough that the dead don't attract events for long.
CLIENT_GRACE_S = 10.0

#: How long a client that lost its connection is safe from a newcomer of its name. It is dialling
#: again by then, unless the outage is long; and a program that was restarted, whose broken
#: connection is all that its broker has seen, need not wait for the whole grace period.
TAKEOVER_S = 2.0

#: Bytes that wait for all clients together. One that does not read is cut off at its own limit;
#: this is for very many at once, and then the one with most in its queue is cut off.
CLIENT_OUTBOXES_BYTES = 1 << 30

#: What is kept for a neighbour that is down. In memory mode it is given up beyond that: sending it
#: our state anew is less work. With a log, publications for clients behind it are refused beyond
#: that, until only ROOM_SHARE of it is left; and it is given up beyond GIVE_UP_TIMES as much. What
#: is not refused has to wait as well: publications that were under way, also those that wait at
#: brokers that could not be told, and changes of tables. A client that subscribes and
#: un-subscribes all the time makes any number of those.
NEIGHBOUR_OUTBOX_MESSAGES = 1_000_000
NEIGHBOUR_OUTBOX_BYTES = 128 << 20
ROOM_SHARE = 0.5
GIVE_UP_TIMES = 4


@dataclass(frozen=True)
class Settings:
    """The settings of one broker process."""

    #: What a hello must carry; every broker and client of an overlay has the same.
    secret: str = ""
    #: Emulated one-way delay of client links; neighbours' come with the topology's edges.
    client_delay_s: float = 0.0
    hello_timeout_s: float = HELLO_TIMEOUT_S
    pending_connections: int = PENDING_CONNECTIONS
    pending_per_address: int = PENDING_PER_ADDRESS
    client_connections: int = CLIENT_CONNECTIONS
    operator_connections: int = OPERATOR_CONNECTIONS
    client_grace_s: float = CLIENT_GRACE_S
    takeover_s: float = TAKEOVER_S
    client_outbox_messages: int = OUTBOX_MESSAGES
    client_outbox_bytes: int = OUTBOX_BYTES
    client_outboxes_bytes: int = CLIENT_OUTBOXES_BYTES
    neighbour_outbox_messages: int = NEIGHBOUR_OUTBOX_MESSAGES
    neighbour_outbox_bytes: int = NEIGHBOUR_OUTBOX_BYTES
    heartbeat_s: float = HEARTBEAT_S
    idle_s: float = IDLE_S
    absent_after_s: float = ABSENT_AFTER_S


def within_files(settings: Settings, files: int) -> Settings:
    """The settings with limits of connections that a process with so many files can keep.

    A connection that has to make room for another may have its file for one more turn of the
    reactor, in which a backlog is accepted.
    """
    pending = max(1, min(settings.pending_connections, files // 4))
    operators = max(1, min(settings.operator_connections, files // 16))
    reserved = min(FILES_RESERVED, files // 8) + min(BACKLOG, files // 4)
    room = files - reserved - pending - operators
    return replace(
        settings,
        pending_connections=pending,
        pending_per_address=max(1, min(settings.pending_per_address, pending)),
        operator_connections=operators,
        client_connections=max(1, min(settings.client_connections, room)),
    )
