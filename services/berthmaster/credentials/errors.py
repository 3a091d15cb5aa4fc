"""What forbids a step though every server would allow it. Pure."""

from berthmaster.controller.answer import Declined, Outcome


class NotOurs(Declined):
    """An object of somebody else's stands where ours should."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is there already and is not ours")


class StillListed(Declined):
    """A MultiKueueConfig names the cluster."""

    outcome = Outcome.CONFLICT


class NoWayIn(Declined):
    """The bootstrap Secret that a step was to use is not there any more."""

    outcome = Outcome.GONE
