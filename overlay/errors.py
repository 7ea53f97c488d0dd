"""The errors of the overlay, as one tree.

OverlayError
├── FilterError          an invalid filter, predicate or value; names the attribute and why
├── FrameTooLarge        a message larger than a broker reads from a client
├── OperationError       the caller's mistake: the operation was refused, nothing has changed
│   ├── NotAdvertised    a publication outside its client's advertised space
│   ├── NotHeld          un-subscribing or un-advertising what the client does not hold
│   ├── LimitReached     the client, or the broker in all, has as much of something as it may
│   ├── BrokerAway       a publication for clients behind a broker that is away; no more can wait
│   └── NameTaken        a client of that name is connected already
│       └── NameAway     it has just lost its connection, and may come back: try again soon
├── LogError             a broker's log cannot be opened or read; nothing in it was changed
│   ├── LogLocked        another process uses it
│   ├── LogDamaged       what was committed is not there as it was written; names file and place
│   ├── WrongLog         not a log, another broker's, or of a format that is not known here
│   └── LogUnusable      the directory cannot be read or written: rights, a full disk
├── SnapshotError        a broker's state that cannot be kept, or bytes that are none of this broker
├── Overloaded           too many clients connect at once; trying again soon may succeed
│   └── BrokerFull       the broker has as many clients or operators as it can keep
└── PeerError            the peer's mistake: its link is closed with this reason
    ├── ProtocolError    not a frame, not our protocol, not a version we speak
    ├── DuplicateBroker  a second process under a neighbour's name, while the first is connected
    ├── Unauthorized     the hello's secret is not this overlay's
    └── SlowReader       the peer's queue is full: it reads slower than it is sent to

A mistake of the caller raises at the call. A mistake of the peer closes that peer's link.
A mistake of ours is an assertion.
"""

from __future__ import annotations

#: Characters of a reason that are kept: it may quote what the peer has sent, and has to fit into a
#: goodbye and a line of a log.
REASON_LIMIT = 1000


class OverlayError(Exception):
    """Base of all errors that this package raises on purpose."""

    #: What an error frame carries, so that the other side can raise the same class.
    code = "overlay"


class FilterError(OverlayError, ValueError):
    """An invalid filter, predicate or value."""

    code = "filter"

    def __init__(self, attribute: str | None, reason: str) -> None:
        self.attribute = attribute
        self.reason = reason
        super().__init__(reason if attribute is None else f"attribute {attribute!r}: {reason}")


class FrameTooLarge(OverlayError, ValueError):
    """A message larger than its receiver accepts; it was not sent."""

    code = "too-large"


class SnapshotError(OverlayError):
    """A broker's state that cannot be kept, or bytes that are not a state of this broker."""

    code = "snapshot"


class OperationError(OverlayError):
    """An operation that was refused; nothing has changed."""

    code = "operation"


class NotAdvertised(OperationError):
    """A publication outside its client's advertised space."""

    code = "not-advertised"


class NotHeld(OperationError):
    """Un-subscribing or un-advertising a filter of which the client holds no part."""

    code = "not-held"


class LimitReached(OperationError):
    """The client, or the broker in all, has reached a limit, which the reason names."""

    code = "limit"


class BrokerAway(OperationError):
    """A publication for clients behind a broker that is away, for which no more can wait.

    The reason names the broker. Publications for others go on; try again later.
    """

    code = "broker-away"


class NameTaken(OperationError):
    """A client of that name is connected already, at this broker or another."""

    code = "name-taken"


class NameAway(NameTaken):
    """A client of that name has just lost its connection and may come back: try again soon."""

    code = "name-away"


class LogError(OverlayError):
    """A broker's log cannot be opened or read; nothing in it was changed."""

    code = "log"


class LogLocked(LogError):
    """Another process uses the log; the reason has its process id."""

    code = "log-locked"


class LogDamaged(LogError):
    """Something that was committed is missing or not as it was written; the reason says where."""

    code = "log-damaged"


class WrongLog(LogError):
    """The directory holds no log, another broker's, or one of a format that is not known here."""

    code = "wrong-log"


class LogDiverges(LogError):
    """The inputs in the log do not lead to what was sent: other code has written them."""

    code = "log-diverges"


class LogUnusable(LogError):
    """The directory cannot be read or written."""

    code = "log-unusable"


class Overloaded(OverlayError):
    """Too many clients connect to the broker at once; trying again soon may succeed."""

    code = "overloaded"


class BrokerFull(Overloaded):
    """The broker has reached its limit of connected clients or operators."""

    code = "broker-full"


class PeerError(OverlayError):
    """The peer broke the rules: its link is closed with this reason."""

    code = "peer"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason[:REASON_LIMIT])


class ProtocolError(PeerError):
    """Not a frame, not our protocol, or not a version that we speak."""

    code = "protocol"


class DuplicateBroker(PeerError):
    """A second process under a neighbour's name, while the first is connected."""

    code = "duplicate-broker"


class Unauthorized(PeerError):
    """The hello does not carry this overlay's secret."""

    code = "unauthorized"


class SlowReader(PeerError):
    """The peer reads more slowly than it is sent to, and its queue is full."""

    code = "slow-reader"


def _family(root: type[OverlayError]) -> dict[str, type[OverlayError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_family(child))
    return found


def from_code(code: str, reason: str) -> OverlayError:
    """The error that a peer named by its code; an unknown code gives the base class."""
    kind = _family(OverlayError).get(code, OverlayError)
    return FilterError(None, reason) if kind is FilterError else kind(reason)
