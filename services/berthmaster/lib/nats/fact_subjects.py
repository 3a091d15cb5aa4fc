"""Where a fact about the fleet is stored: its content says it."""

from typing import assert_never

from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    CopyReport,
    FleetFact,
    Membership,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.nats import subjects


def subject_of(fact: FleetFact) -> str:
    """Its subject. Raises SubjectError."""
    match fact:
        case ClusterAlive():
            return subjects.alive(fact.cluster)
        case ClusterProfile():
            return subjects.profile(fact.cluster)
        case Membership():
            return subjects.membership(fact.cluster)
        case NodeReport() | NodeGone():
            return subjects.node(fact.cluster, fact.node)
        case QueueReport():
            return subjects.queue_report(fact.cluster, fact.queue)
        case CopyReport():
            return subjects.copy_report(fact.cluster, fact.namespace, fact.workload)
        case ClusterScore():
            return subjects.score(fact.cluster)
        case _:
            assert_never(fact)
