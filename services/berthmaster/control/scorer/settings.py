"""The scorer's settings, and the core's rules made from them."""

from dataclasses import dataclass

from berthmaster.control.scorer.core.gpu_faults import FaultRules
from berthmaster.control.scorer.core.rules import Amount, ScoringRules
from berthmaster.control.scorer.core.shard import Shard, parse_shard
from berthmaster.lib.runtime.settings import CommonSettings, setting

_MIB_A_GIB = 1024.0
WITHDRAWN_AFTER = 8.0  # times stale_after_s: enough to restart or move a reporter


def _shard(text: str) -> str:
    return "" if parse_shard(text) else "INDEX/COUNT such as 2/8, the index from 1 to the count"


def _scale(amounts: tuple[float, ...]) -> str:
    if len(amounts) in (0, 4) and all(amount >= 0 for amount in amounts):
        return ""
    return "four numbers with commas between them: cores, GiB, GPUs, TPUs (0 = from the fleet)"


@dataclass(frozen=True, kw_only=True)
class ScorerSettings(CommonSettings):
    shard: str = setting(
        "1/1",
        check=_shard,
        help=(
            "shard of clusters: 2/8 = the second of eight, by a hash of the cluster's name; "
            "several scorers of one shard are replicas"
        ),
    )
    stale_after_s: float = setting(
        15.0,
        least=0.1,
        most=86_400,
        help=(
            "seconds without a heartbeat until a cluster is stale; after eight times as long "
            "its scores are withdrawn. A reporter that announces longer intervals gets three of"
            " them"
        ),
    )
    cluster_full_scale: tuple[float, ...] = setting(
        (),
        check=_scale,
        help=(
            "capacity that scores 100 for a cluster: cores,GiB,GPUs,TPUs; none or 0 = the "
            "largest cluster of the fleet, rounded up"
        ),
    )
    node_full_scale: tuple[float, ...] = setting(
        (),
        check=_scale,
        help=(
            "capacity that scores 100 for a node: cores,GiB,GPUs,TPUs; none or 0 = the largest "
            "node of the fleet, rounded up"
        ),
    )
    gpu_heal_s: float = setting(
        600.0,
        least=0,
        most=86_400,
        help=(
            "seconds for which telemetry must report a faulty GPU as healthy before it takes "
            "new pods; faulty = lost, uncorrectable memory errors, or throttled for long"
        ),
    )
    gpu_throttle_s: float = setting(
        900.0,
        least=10,
        most=86_400,
        help="seconds of throttling by its hardware (heat, power brake) until a GPU gets no "
        "new pods",
    )


def rules_of(settings: ScorerSettings) -> ScoringRules:
    """Return the core's rules."""
    return ScoringRules(
        stale_after_s=settings.stale_after_s,
        withdraw_after_s=WITHDRAWN_AFTER * settings.stale_after_s,
        cluster_full_scale=_amount(settings.cluster_full_scale),
        node_full_scale=_amount(settings.node_full_scale),
        faults=FaultRules(settings.gpu_heal_s, settings.gpu_throttle_s),
    )


def shard_of_settings(settings: ScorerSettings) -> Shard:
    """Return the shard, which the settings' own check has accepted."""
    return parse_shard(settings.shard) or Shard()


def _amount(scale: tuple[float, ...]) -> Amount:
    cpu, memory_gib, gpu, tpu = scale or (0.0, 0.0, 0.0, 0.0)
    return Amount(cpu, memory_gib * _MIB_A_GIB, gpu, tpu)
