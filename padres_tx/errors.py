"""The errors of clients, engines and services; `overlay.errors` has those of the overlay itself.

OverlayError                (overlay.errors: filters, refused operations, peers' mistakes)
├── UnknownService          a topology lists a service that is not installed; also a ValueError
├── InvalidService          a service that cannot be used, with the reason; also a ValueError
└── ClientError
    ├── BadAddress          an invalid address; also a ValueError
    ├── BadName             an invalid client name; also a ValueError
    ├── Unreachable         no broker could be reached at the address; also a ConnectionError
    ├── ConnectionLost      the connection and the session are lost; also a ConnectionError
    ├── ClientClosed        a call on a client that has been closed
    ├── CallTimeout         no reply in time, the outcome is unknown; also a TimeoutError
    ├── TooManyRequests     more calls are waiting for replies than a session allows
    ├── UnknownEngine       no transaction engine of that name; also a ValueError
    ├── InvalidEngine       an engine that cannot be used, with the reason; also a ValueError
    └── TransactionError
        ├── BadTransaction        an operation that the engine does not support; also a ValueError
        ├── UnknownTransaction    no transaction of that name in which this client takes part
        ├── TransactionFinished   the caller has already ended the transaction or its part in it
        ├── NotCoordinator        only the client that began a transaction can commit it
        └── TransactionAborted    an outcome, not a mistake: with a code and a reason

Errors that the overlay reports keep their classes: `NameTaken`, `NameAway`, `NotAdvertised`,
`NotHeld`, `Unauthorized`, `SlowReader`, `ProtocolError`, `FilterError`, `FrameTooLarge`.
"""

from __future__ import annotations

from overlay.errors import OverlayError

#: An example of a transaction's name: its coordinator, the coordinator's life, and a number.
TX_EXAMPLE = "E:mfq0zk3p.b7c1:17"


class UnknownService(OverlayError, ValueError):
    """A topology lists a service that is not installed."""

    code = "unknown-service"


class InvalidService(OverlayError, ValueError):
    """A service lacks something that is required of it."""

    code = "invalid-service"


class ClientError(OverlayError):
    """Base of the errors of clients."""

    code = "client"


class BadAddress(ClientError, ValueError):
    """The address is not of the form "host:port"."""

    code = "bad-address"


class BadName(ClientError, ValueError):
    """The name is not valid for a client."""

    code = "bad-name"


class Unreachable(ClientError, ConnectionError):
    """No broker could be reached at the address within the time allowed."""

    code = "unreachable"


class ConnectionLost(ClientError, ConnectionError):
    """The connection to the broker is lost, and with it the session's state at the broker."""

    #: A broker that shuts down sends this code to its clients.
    code = "closing"


class ClientClosed(ClientError):
    """A call on a client that has been closed."""

    code = "client-closed"


class CallTimeout(ClientError, TimeoutError):
    """No reply in time. The operation may still happen, or may have happened."""

    code = "call-timeout"


class TooManyRequests(ClientError):
    """More calls are waiting for replies than a session allows."""

    code = "too-many-requests"


class UnknownEngine(ClientError, ValueError):
    """No transaction engine has that name."""

    code = "unknown-engine"


class InvalidEngine(ClientError, ValueError):
    """An engine lacks something that is required of it, or its declaration is contradictory."""

    code = "invalid-engine"


class TransactionError(ClientError):
    """Base of the errors of transactions."""

    code = "transaction"


class BadTransaction(TransactionError, ValueError):
    """A transaction that its engine, or any engine, cannot carry out."""

    code = "bad-transaction"


class UnknownTransaction(TransactionError):
    """No transaction has that name, or this client takes no part in it."""

    code = "unknown-transaction"


def no_name(text: object) -> UnknownTransaction:
    """Return the error for a text that cannot be a transaction's name."""
    return UnknownTransaction(f"invalid transaction id {text!r}: expected one like {TX_EXAMPLE}")


class TransactionFinished(TransactionError):
    """The caller acts in a transaction that it has ended, or in which it has ended its part."""

    code = "transaction-finished"


class NotCoordinator(TransactionError):
    """Only the client that began a transaction can commit it."""

    code = "not-coordinator"


class TransactionAborted(TransactionError):
    """The transaction was aborted and has no effects.

    `code` is the reason for programs, "conflict" if another attempt may succeed; `reason` is a
    sentence for people.
    """

    code = "transaction-aborted"

    def __init__(self, reason: str, *, code: str = "aborted", tx: str = "") -> None:
        super().__init__(f"{tx or 'the transaction'} was aborted: {reason}")
        self.reason = reason
        self.code = code
        self.tx = tx
