"""What the scorer can be told, and what its core makes of it."""

from dataclasses import dataclass

from berthmaster.runtime.settings import CommonSettings, setting
from berthmaster.scorer.rules import Amount, ScoringRules
from berthmaster.scorer.shard import Shard, parse_shard

_MIB_A_GIB = 1024.0


def _shard(text: str) -> str:
    return "" if parse_shard(text) else "INDEX/COUNT such as 2/8, the index from 1 to the count"


def _scale(amounts: tuple[float, ...]) -> str:
    if len(amounts) in (0, 4) and all(amount >= 0 for amount in amounts):
        return ""
    return "four numbers with commas between them: cores, GiB, GPUs, TPUs (0 = from the fleet)"


@dataclass(frozen=True, kw_only=True)
class ScorerSettings(CommonSettings):
    """Each with its unit and the reason of its default."""

    shard: str = setting(
        "1/1",
        check=_shard,
        help="which clusters are scored here: 2/8 is the second of eight, chosen by a hash of the "
        "cluster's name; several scorers of one shard stand by for each other",
    )
    stale_after_s: float = setting(
        15.0,
        least=0.1,
        most=86_400,
        help="seconds without a sign of life until a cluster is stale; reporters give one every "
        "few seconds, and one that announces longer intervals gets three of them",
    )
    withdraw_after_s: float = setting(
        120.0,
        least=0.2,
        most=86_400,
        help="seconds without a sign of life until its score is withdrawn (at least twice the "
        "above); long enough for a reporter to be restarted or moved",
    )
    refresh_s: float = setting(
        5.0,
        least=0.05,
        most=3600,
        help="seconds after which a score is told again even if nothing changed, so that its "
        "readers see that somebody keeps it",
    )
    dead_band: float = setting(
        1.0,
        least=0,
        most=100,
        help="points that a score, or percent of its GPUs that an amount, must move to be told "
        "before the refresh; below it telemetry's noise would be told all the time; 0 = all",
    )
    window_ms: float = setting(
        4.0,
        least=0,
        most=1000,
        help="milliseconds in which changes of a cluster become one score; a fifth of the 20 ms "
        "that a change may take to the bus",
    )
    future_limit_s: float = setting(
        300.0,
        least=0,
        most=86_400,
        help="seconds that a node's clock may be ahead before its telemetry is ignored; clocks "
        "that are wrong by minutes do happen and harm nothing",
    )
    cluster_full_scale: tuple[float, ...] = setting(
        (),
        check=_scale,
        help="what scores 100 in the scope of a cluster: cores,GiB,GPUs,TPUs; none or 0 = the "
        "largest cluster of the fleet, rounded up",
    )
    node_full_scale: tuple[float, ...] = setting(
        (),
        check=_scale,
        help="what scores 100 in the scope of a node: cores,GiB,GPUs,TPUs; none or 0 = the "
        "largest node of the fleet, rounded up",
    )
    mix_half_life_s: float = setting(
        3600.0,
        least=1,
        most=31_536_000,
        help="seconds after which a submitted pod counts half in the typical job mix; an hour "
        "follows the day without following every burst",
    )
    mix_pods: float = setting(
        50.0,
        least=1,
        most=1e9,
        help="pods (by the count above) from which the mix is what was seen; until then a default "
        "stands in",
    )
    mix_messages: int = setting(
        20_000,
        least=1,
        most=10_000_000,
        help="how far back in the workloads' stream a start looks for the mix; the newest count "
        "most, and reading this many takes about a second",
    )
    lease_ttl_s: float = setting(
        1.2,
        least=0.3,
        most=60,
        help="seconds until a silent publisher's shard is taken over; with the waiting between "
        "two looks this stays below the 2 s that readers are promised",
    )


def rules_of(settings: ScorerSettings) -> ScoringRules:
    """The part that the core works by."""
    return ScoringRules(
        stale_after_s=settings.stale_after_s,
        withdraw_after_s=settings.withdraw_after_s,
        refresh_s=settings.refresh_s,
        window_s=settings.window_ms / 1000,
        dead_band=settings.dead_band,
        future_limit_s=settings.future_limit_s,
        cluster_full_scale=_amount(settings.cluster_full_scale),
        node_full_scale=_amount(settings.node_full_scale),
        mix_half_life_s=settings.mix_half_life_s,
        mix_pods=settings.mix_pods,
    )


def shard_of_settings(settings: ScorerSettings) -> Shard:
    """The shard; the settings' own check has seen it."""
    return parse_shard(settings.shard) or Shard()


def _amount(scale: tuple[float, ...]) -> Amount:
    cpu, memory_gib, gpu, tpu = scale or (0.0, 0.0, 0.0, 0.0)
    return Amount(cpu, memory_gib * _MIB_A_GIB, gpu, tpu)
