"""What a decider's settings say of how clusters are seen and ranked."""

from collections.abc import Mapping
from typing import Protocol

from berthmaster.lib.engine.scoring.profiles import Weights


class RankingPolicy(Protocol):
    """The part of a decider's settings that rankings follow from. Must be hashable."""

    @property
    def stale_after_s(self) -> float:
        """A cluster silent for so long gets no new placements."""

    @property
    def avoid_s(self) -> float:
        """One that left a placement unclaimed is passed over for so long."""

    @property
    def ranking_limit(self) -> int:
        """Clusters that a record keeps."""

    @property
    def profile(self) -> str:
        """Ranks clusters where neither the request nor its queue names another."""

    @property
    def profiles(self) -> Mapping[str, Weights]: ...

    def __hash__(self) -> int: ...
