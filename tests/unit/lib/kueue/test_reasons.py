"""Reasons for having no quota, by Kueue's version, as families."""

import pytest

from berthmaster.lib.kueue.reasons import Family, family_of

FULL = "couldn't assign flavors to pod set main: insufficient unused quota for cpu, 2 more needed"
SMALL = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, "
SMALL += "request > maximum capacity (4 > 1)"
STOPPED = "ClusterQueue gpus is inactive"


@pytest.mark.parametrize(
    ("reason", "message", "family"),
    [
        # up to 0.19: the message tells
        ("Pending", FULL, Family.BUSY),
        ("Pending", SMALL, Family.HOPELESS),
        ("Pending", "", Family.UNDECIDED),
        ("Inadmissible", STOPPED, Family.HOPELESS),
        ("Inadmissible", "LocalQueue main doesn't exist", Family.HOPELESS),
        # from 0.20 on: the reason does, whatever the message may be then
        ("WaitingForQuota", "all is taken", Family.BUSY),
        ("WaitingForPreemptedWorkloads", "", Family.BUSY),
        ("ExceedsMaxQuota", "too much", Family.HOPELESS),
        ("Suspended", "held", Family.HOPELESS),
        ("Misconfigured", "no queue", Family.HOPELESS),
        # one that is not known yet, and a report of an older inventory: the message tells
        ("SomethingNew", FULL, Family.BUSY),
        ("SomethingNew", STOPPED, Family.HOPELESS),
        ("SomethingNew", "of which nothing is known", Family.UNDECIDED),
        ("PendingEvaluation", "", Family.UNDECIDED),
        ("", SMALL, Family.HOPELESS),
        ("", "", Family.UNDECIDED),
    ],
)
def test_what_is_to_be_thought_of_a_reason(reason: str, message: str, family: Family) -> None:
    assert family_of(reason, message) is family
