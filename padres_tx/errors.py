"""What can go wrong with clients, engines and services, beside what the overlay refuses.

OverlayError                (overlay.errors: filters, refused operations, peers' mistakes)
├── UnknownService          a topology lists a service that is not installed; also a ValueError
├── InvalidService          a service that cannot be used, with the reason; also a ValueError
└── ClientError
    ├── BadAddress          not an address "host:port"; also a ValueError
    ├── BadName             not a name for a client; also a ValueError
    ├── Unreachable         nobody there speaks our protocol; also a ConnectionError
    ├── ConnectionLost      the broker has gone, and the session with it; also a ConnectionError
    ├── ClientClosed        a call on a client that has been closed
    ├── CallTimeout         no answer in time, the outcome is unknown; also a TimeoutError
    ├── TooManyRequests     more calls are waiting for their answers than a session keeps
    ├── UnknownEngine       no transaction engine of that name; also a ValueError
    ├── InvalidEngine       an engine that cannot be used, with the reason; also a ValueError
    └── TransactionError
        ├── BadTransaction        what an engine cannot do, or cannot be done; also a ValueError
        ├── UnknownTransaction    no transaction of that name, or none with a part for this client
        ├── TransactionFinished   the caller has ended the transaction, or its part in it, itself
        ├── NotCoordinator        only who began a transaction can commit it
        └── TransactionAborted    not a mistake but an outcome: with a code and a reason

What the overlay refuses keeps the overlay's class: `NameTaken`, `NameAway`, `NotAdvertised`,
`NotHeld`, `Unauthorized`, `SlowReader`, `ProtocolError`, `FilterError`, `FrameTooLarge`.
"""

from __future__ import annotations

from overlay.errors import OverlayError

#: What a transaction's name looks like: its coordinator, which life of that, and a number.
TX_EXAMPLE = "E:mfq0zk3p.b7c1:17"


class UnknownService(OverlayError, ValueError):
    """A topology lists a service that is not installed."""

    code = "unknown-service"


class InvalidService(OverlayError, ValueError):
    """A service lacks something that is required of it."""

    code = "invalid-service"


class ClientError(OverlayError):
    """Base of what only a client runs into."""

    code = "client"


class BadAddress(ClientError, ValueError):
    """Not an address of the form "host:port"."""

    code = "bad-address"


class BadName(ClientError, ValueError):
    """Not a name that a client may have."""

    code = "bad-name"


class Unreachable(ClientError, ConnectionError):
    """No broker could be reached at the address within the time allowed."""

    code = "unreachable"


class ConnectionLost(ClientError, ConnectionError):
    """The broker has gone, and with it what the session had said to it."""

    #: A broker that is being shut down says goodbye with this code.
    code = "closing"


class ClientClosed(ClientError):
    """A call on a client that has been closed."""

    code = "client-closed"


class CallTimeout(ClientError, TimeoutError):
    """No answer in time. What was asked may still happen, or may have happened."""

    code = "call-timeout"


class TooManyRequests(ClientError):
    """More calls are waiting for their answers than a session keeps."""

    code = "too-many-requests"


class UnknownEngine(ClientError, ValueError):
    """No transaction engine has that name."""

    code = "unknown-engine"


class InvalidEngine(ClientError, ValueError):
    """An engine lacks something that is required of it, or declares what cannot be."""

    code = "invalid-engine"


class TransactionError(ClientError):
    """Base of what concerns a transaction."""

    code = "transaction"


class BadTransaction(TransactionError, ValueError):
    """A transaction that its engine cannot carry out, or that nobody could."""

    code = "bad-transaction"


class UnknownTransaction(TransactionError):
    """No transaction has that name, or this client takes no part in it."""

    code = "unknown-transaction"


def no_name(text: object) -> UnknownTransaction:
    """The error for a text that cannot be a transaction's name."""
    return UnknownTransaction(f"{text!r} names no transaction; one is named like {TX_EXAMPLE}")


class TransactionFinished(TransactionError):
    """The caller has ended the transaction, or its own part in it, and goes on acting in it."""

    code = "transaction-finished"


class NotCoordinator(TransactionError):
    """Only the client that began a transaction can commit it."""

    code = "not-coordinator"


class TransactionAborted(TransactionError):
    """The transaction was aborted: nothing of it has happened.

    `code` says why in a word, "conflict" if another attempt may succeed; `reason` says it to
    people.
    """

    code = "transaction-aborted"

    def __init__(self, reason: str, *, code: str = "aborted", tx: str = "") -> None:
        super().__init__(f"{tx or 'the transaction'} was aborted: {reason}")
        self.reason = reason
        self.code = code
        self.tx = tx
