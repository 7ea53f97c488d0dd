"""Lives of clients, and the names of publications and transactions that are built on them.

A client numbers its messages, and every program that uses the client's name counts from 1 again.
A *life* distinguishes these programs: the edge broker issues it when the client joins, and the
client, its life and a number name a publication or a transaction for good.

    life = tick * 2**20 + salt

The tick is the broker's time in milliseconds, but always above the tick of every life that the
broker has issued or seen. Every join is flooded, so a client that comes back gets a higher life
than before, also when a clock is behind or was set back. Ticks that are too far ahead to be a time
(`TICK_LIMIT`) are not followed: one broker that is wrong must not use up the lives of all others.
The salt is 20 random bits of the broker process. A broker that was restarted and has seen nothing
yet repeats a life only if its clock shows the same millisecond once more and it draws the same
salt.

In text a life is its tick and, after a dot, its salt if there is one, in base 36: the publication
`E:mfq0zk3p.b7c1:17` is number 17 of that life of E. Names of clients may contain colons, so these
texts are read from the right.
"""

from __future__ import annotations

from functools import lru_cache

from overlay.errors import ProtocolError
from overlay.stored import stored

#: Bits of a life that are the salt. A million salts make a repetition as unlikely as it has to be,
#: and leave room for the milliseconds of two centuries in the 63 bits of a life.
SALT_BITS = 20

#: Lives are below this, so that they are 64-bit integers wherever they travel.
LIFE_LIMIT = 1 << 63

#: Ticks of other brokers are followed up to here, the year 2109; what is above is left for the
#: lives that this broker issues itself.
TICK_LIMIT = LIFE_LIMIT >> SALT_BITS + 1

#: The longest texts of a life and of a number that are read; they may come from anywhere.
_LIFE_DIGITS = 16
_NUMBER_DIGITS = 20

#: Texts of lives that are cached: a broker's records name the same clients again and again.
_CACHED_LIVES = 4096

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@stored("lives")
class Lives:
    """Issues the lives of one broker's clients."""

    __slots__ = ("_salt", "_tick")

    def __init__(self, salt: int = 0) -> None:
        assert 0 <= salt < 1 << SALT_BITS, salt
        self._salt = salt
        #: The highest tick that was issued or seen.
        self._tick = 0

    def issue(self, now: float) -> int:
        """A life that is higher than all lives that were issued or seen here."""
        self._tick = max(int(now * 1000), self._tick + 1)
        return self._tick << SALT_BITS | self._salt

    def saw(self, life: int) -> None:
        """Note a life that another broker has issued.

        Raises ProtocolError if no broker issues such a life.
        """
        if not 0 <= life < LIFE_LIMIT:
            raise ProtocolError(f"invalid life {life}")
        tick = life >> SALT_BITS
        if tick < TICK_LIMIT:
            self._tick = max(self._tick, tick)


def name_text(client: str, life: int, number: int) -> str:
    """The name of a publication or transaction, for people and records."""
    return f"{client}:{life_text(life)}:{number}"


def parse_name(text: str) -> tuple[str, int, int] | None:
    """The client, life and number in a name; None if the text is not a name."""
    rest, _, number = text.rpartition(":")
    client, _, life = rest.rpartition(":")
    lived = parse_life(life)
    if not client or lived is None or len(number) > _NUMBER_DIGITS:
        return None
    if not (number.isascii() and number.isdigit()):
        return None
    return client, lived, int(number)


@lru_cache(_CACHED_LIVES)
def life_text(life: int) -> str:
    """A life in base 36: its tick, and its salt if there is one."""
    salt = life & (1 << SALT_BITS) - 1
    tick = _base_36(life >> SALT_BITS)
    return f"{tick}.{_base_36(salt)}" if salt else tick


def parse_life(text: str) -> int | None:
    """The life that a text stands for; None if it is invalid."""
    tick, dot, salt = text.partition(".")
    if len(text) > _LIFE_DIGITS or not _is_base_36(tick) or (dot and not _is_base_36(salt)):
        return None
    life = int(tick, 36) << SALT_BITS | int(salt or "0", 36)
    return life if life_text(life) == text else None


def _base_36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


def _is_base_36(text: str) -> bool:
    return bool(text) and all(digit in _DIGITS for digit in text)
