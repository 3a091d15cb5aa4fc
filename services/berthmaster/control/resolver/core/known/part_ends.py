"""How a part of a divided job ended, as its job must know it."""

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
    blamed: bool = False  # it was evicted, and that counts
    checkpoint: Checkpoint | None = None  # that it told last
