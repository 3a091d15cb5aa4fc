"""Errors that prevent a step although every server would allow the call. Pure."""

from berthmaster.lib.kube.controller.shell_contract import Declined, Outcome


class NotOurs(Declined):
    """Another client owns an object under Berthmaster's name."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is there already and is not ours")


class HasAnotherName(Declined):
    """The worker has access under another name, so MultiKueue would send jobs twice."""

    def __init__(self, cluster: str, other: str) -> None:
        super().__init__(
            f"{cluster} is the API server of {other}, which has access: name it once, and delete "
            "the bootstrap Secret of the other name"
        )


class StillListed(Declined):
    """A MultiKueueConfig names the cluster."""

    outcome = Outcome.CONFLICT


class NoWayIn(Declined):
    """The bootstrap Secret of the step is gone."""

    outcome = Outcome.GONE
