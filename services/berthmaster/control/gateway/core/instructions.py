"""Instructions of the gateway's core, beside those that all cores share (lifecycle)."""

import msgspec

from berthmaster.lib.lifecycle.instructions import Append, PutControl, Reload, Reply


class ReadStory(msgspec.Struct, frozen=True, kw_only=True):
    """Read all events of one workload, from the archive if purged."""

    ref: str
    tenant: str
    id: str


class Breathe(msgspec.Struct, frozen=True, kw_only=True):
    """Continue this long conversation at its fair turn."""

    ref: str
    asker: str  # a tenant, or "" for an operator


Instruction = Append | Breathe | Reload | ReadStory | PutControl | Reply
