"""What forbids a step though every server would allow it. Pure."""

from berthmaster.lib.kube.controller.shell_contract import Declined, Outcome


class NotOurs(Declined):
    """An object of somebody else's stands where ours should."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is there already and is not ours")


class HasAnotherName(Declined):
    """The worker has access under another name: MultiKueue would send jobs there twice."""

    def __init__(self, cluster: str, other: str) -> None:
        super().__init__(
            f"{cluster} is the API server of {other}, which has access: name it once, and delete "
            "the bootstrap Secret of the other name"
        )


class StillListed(Declined):
    """A MultiKueueConfig names the cluster."""

    outcome = Outcome.CONFLICT


class NoWayIn(Declined):
    """The bootstrap Secret that a step was to use is not there any more."""

    outcome = Outcome.GONE
