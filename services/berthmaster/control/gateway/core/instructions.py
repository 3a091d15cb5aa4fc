"""What the gateway's core asks for, beside the instructions that all cores share (lifecycle)."""

import msgspec

from berthmaster.lib.lifecycle.instructions import Append, PutControl, Reload, Reply


class ReadStory(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction: read all of one workload's events, from the archive if purged."""

    ref: str
    tenant: str
    id: str


class Breathe(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction: go on with this conversation when it is its turn; it is a long one."""

    ref: str
    asker: str  # a tenant; "": an operator


Instruction = Append | Breathe | Reload | ReadStory | PutControl | Reply
