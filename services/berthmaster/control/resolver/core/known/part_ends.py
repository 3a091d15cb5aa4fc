"""The end of a part of a divided job, for its job."""

import msgspec

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.workload import Checkpoint, Fault


class PartEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    state: State
    reason: str = ""
    exit_code: int | None = None
    fault: Fault = ""
    node: str = ""
    blamed: bool = False  # evicted, and counted
    checkpoint: Checkpoint | None = None  # last reported checkpoint
