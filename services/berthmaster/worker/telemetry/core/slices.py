"""Utilization of a GPU in MIG mode, from its slices, because the driver reports none. Pure."""

from collections.abc import Sequence

from berthmaster.lib.accelerators import mig
from berthmaster.lib.messages.telemetry import MigInstance
from berthmaster.worker.telemetry.core.source import percent


def of_slices(slices: Sequence[MigInstance], model: str) -> float | None:
    """Return the sum over slices, each by its share of the GPU. An unmeasured slice makes the
    result unknown.

    Example: 3g at 80 % and 1g at 30 % are 3/7 * 80 + 1/7 * 30 = 38.6 % of an H100.
    """
    board = mig.board_of(model)
    busy = 0.0
    for one in slices:
        profile = mig.profile(one.profile)
        if one.utilization_percent is None or profile is None:
            return None
        busy += one.utilization_percent * profile.slices / board.compute
    return percent(round(busy, 1)) if slices else None
