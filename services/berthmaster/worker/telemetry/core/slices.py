"""What a GPU in MIG mode does, from what its slices do: its driver does not say it then. Pure."""

from collections.abc import Sequence

from berthmaster.lib.accelerators import mig
from berthmaster.lib.messages.telemetry import MigInstance
from berthmaster.worker.telemetry.core.source import percent


def of_slices(slices: Sequence[MigInstance], model: str) -> float | None:
    """What the use of all slices comes to, each by its part of the GPU; what is cut into none is
    idle. One that was not measured leaves the whole unknown.

    For example, 3g at 80 % and 1g at 30 % are 3/7 * 80 + 1/7 * 30 = 38.6 % of an H100.
    """
    board = mig.board_of(model)
    busy = 0.0
    for one in slices:
        profile = mig.profile(one.profile)
        if one.utilization_percent is None or profile is None:
            return None
        busy += one.utilization_percent * profile.slices / board.compute
    return percent(round(busy, 1)) if slices else None
