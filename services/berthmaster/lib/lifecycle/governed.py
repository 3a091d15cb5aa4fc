"""Who governs an attempt: whose word ends it, and who makes its pods. Pure."""

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import Placed


def sent_by_hub(placed: Placed) -> bool:
    """Whether its object came by a hub, which has it made: no executor has anything to do with it.
    Of Kueue's a cell of its own decides, of Karmada's the resolver."""
    return placed.target.via == "hub"


def is_ours_to_end(workload: Workload) -> bool:
    """Whether a decision of ours may end its attempt: no Kueue, of a worker or of a hub, does."""
    if workload.origin is not None:
        return workload.origin.system == "karmada"
    return workload.target.via == "direct"
