"""Replies of the door as its client reads them, with stored messages undecoded.

The replies equal the messages of lib/messages/door.py, byte for byte. So an event or fact of
another version does not spoil the others in the same reply.
"""

import msgspec


class RawHint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Hint."""

    sequence: int
    event: msgspec.Raw
    held: bool = False
    receipt: str = ""


class RawTake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.taken.v1"):
    """A TakeReply."""

    cursor: int
    log: str = ""
    reset: bool = False
    next: str = ""
    hints: tuple[RawHint, ...] = ()


class RawFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An OwnFact."""

    sequence: int
    stored_at_s: float
    fact: msgspec.Raw


class RawFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.facts.v1"):
    """A FactsReply."""

    cursor: int
    log: str = ""
    reset: bool = False
    more: bool = False
    epoch: int = 0
    facts: tuple[RawFact, ...] = ()
