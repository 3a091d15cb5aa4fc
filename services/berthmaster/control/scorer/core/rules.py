"""The numbers of the scorer's core, filled from the service's settings. Pure.

They are apart from the settings, so that the core, its tests and the simulation need no process.
"""

from typing import Final

import msgspec

from berthmaster.control.scorer.core.gpu_faults import FaultRules

RESOURCES: Final = ("cpu", "mem", "gpu", "tpu")


class Amount(msgspec.Struct, frozen=True):
    """One amount per resource, in the units of ``ResourceScore``: cores, MiB, GPUs, TPUs."""

    cpu: float
    mem: float
    gpu: float
    tpu: float


class ScoringRules(msgspec.Struct, frozen=True, kw_only=True):
    stale_after_s: float = 15.0  # without a heartbeat of the cluster's reporter
    withdraw_after_s: float = 120.0  # without a heartbeat, must be more than stale_after_s
    refresh_s: float = 5.0  # maximum interval between two stores of a score
    retry_s: float = 0.5  # until the retry of a score that was not stored
    window_s: float = 0.004  # changes within it become one score
    dead_band: float = 1.0  # smaller changes in points (percent of capacity) are not stored at once
    future_limit_s: float = 300.0  # a node's clock may be this far ahead of the server's
    # Capacity with score 100. 0 = the largest cluster or node of the fleet, rounded up to 1, 2 or 5
    # x 10^n, so that one node more or less does not move every score.
    cluster_full_scale: Amount = Amount(0, 0, 0, 0)
    node_full_scale: Amount = Amount(0, 0, 0, 0)
    mix_half_life_s: float = 3600.0  # after which a submitted pod counts half in the typical mix
    mix_pods: float = 50.0  # decayed number of pods seen, from which the mix is the observed one
    mix_interval_s: float = 5.0  # minimum between two updates of the typical mix
    faults: FaultRules = FaultRules()  # when GPUs are closed to new pods
    slice_nodes: int = 64  # nodes judged by a new mix in one event-loop pass, to keep passes short
