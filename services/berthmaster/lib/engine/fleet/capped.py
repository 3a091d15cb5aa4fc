"""Pod sets with a bound on what nodes charge for their parts of GPUs."""

from berthmaster.lib.messages.workload import PodSet


class CappedPodSet(PodSet, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Pods that each take a part of a GPU, with what their queue lets a part cost.

    Only the engine makes such sets, from requests that it narrows while it looks for room.
    Example: ``(("A100", 250), ("T4", 0))`` admits parts that are charged at most 250 milli of an
    A100, and no part of a T4. A model that is not named is admitted.
    """

    charged_at_most: tuple[tuple[str, int], ...]  # model of a GPU, milli of it
