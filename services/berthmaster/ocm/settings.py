"""What the service ocm can be told."""

from dataclasses import dataclass
from typing import Literal

from berthmaster.bus.subjects import SubjectError, token
from berthmaster.kubernetes.joining import ClusterSettings
from berthmaster.ocm.pace import Rules
from berthmaster.ocm.policy import DEFAULT_NAME, OcmPolicy
from berthmaster.ocm.profiles import nameable
from berthmaster.runtime.settings import setting


def _cluster(text: str) -> str:
    try:
        token(text or "-")
    except SubjectError as error:
        return f"a name that can stand in a subject ({error})"
    return ""


def _object_name(text: str) -> str:
    return "" if nameable(text) else "the name of an object: a-z, 0-9, - and ., at most 253"


def _namespace(text: str) -> str:
    good = not text or (nameable(text) and "." not in text and len(text) <= 63)
    return "" if good else "the name of a namespace, or nothing"


@dataclass(frozen=True, kw_only=True)
class OcmSettings(ClusterSettings):
    """Each with its unit and the reason of its default."""

    side: Literal["hub", "worker"] = setting(
        "hub", help="hub: scores and properties of all clusters; worker: claims of one, in it"
    )
    cluster: str = setting(
        "", check=_cluster, help="the cluster's name in the fleet; needed for side worker"
    )
    score_name: str = setting(
        DEFAULT_NAME,
        check=_object_name,
        help="name of the AddOnPlacementScores; the default is that of OCM's own addon, so that "
        "Placements that exist go on as they are. The Role names it too",
    )
    validity_s: float = setting(
        86_400.0,
        least=10,
        most=2_592_000,
        help="seconds for which scores count after a write; renewed at half of it, and after 150 s "
        "at the latest. It ends only when this service is gone: then OCM counts every cluster as 0 "
        "and chooses by name, so a day is time to bring it back",
    )
    points: float = setting(
        2.0,
        least=0.1,
        most=200,
        help="points (of -100 to 100) by which a score moves to be written at once; 1 percent of "
        "the range. Measured idleness needs five times as much",
    )
    settle_s: float = setting(
        30.0,
        least=0.1,
        most=3600,
        help="seconds that a smaller difference must last to be written, half of OCM's own resync; "
        "less than half of the above waits for the renewal",
    )
    burst: int = setting(
        6, least=2, most=1000, help="writes of one object that may follow each other at once"
    )
    refill_s: float = setting(
        10.0,
        least=0.01,
        most=3600,
        help="seconds until one more write of the object is allowed: whatever happens, an hour has "
        "no more than 3600 / this",
    )
    silent_after_s: float = setting(
        30.0,
        least=1,
        most=3600,
        help="seconds after which a score that nobody tells again counts as unknown; several times "
        "the scorer's refresh_s",
    )
    unreported: bool = setting(
        True,
        help="give managed clusters without an agent the worst score; else they have none, which "
        "OCM counts as 0 and so prefers to many that report",
    )
    manager: str = setting(
        "berthmaster",
        help="name under which we manage ClusterProfiles; those of others are never written",
    )
    profile_namespace: str = setting(
        "", check=_namespace, help="namespace whose ClusterProfiles count; empty = all"
    )
    create_profiles_in: str = setting(
        "",
        check=_namespace,
        help="namespace in which clusters that report, and that nobody manages, get a "
        "ClusterProfile; empty = none are made",
    )
    claim_settle_s: float = setting(
        60.0,
        least=0.1,
        most=3600,
        help="side worker: seconds between two writes of a claim, except when something becomes "
        "nothing; each is a write on the hub too",
    )
    absent_s: float = setting(
        30.0,
        least=0.1,
        most=3600,
        help="seconds between two looks for a kind that is not served",
    )
    lease_ttl_s: float = setting(
        3.0, least=0.3, most=60, help="seconds until a silent writer is replaced by one in waiting"
    )

    @property
    def policy(self) -> OcmPolicy:
        """What the cores go by."""
        worker = self.side == "worker"
        return OcmPolicy(
            rules=Rules(
                points=self.points,
                settle_s=self.claim_settle_s if worker else self.settle_s,
                burst=float(self.burst),
                refill_s=self.claim_settle_s if worker else self.refill_s,
                validity_s=self.validity_s,
            ),
            score_name=self.score_name,
            silent_after_s=self.silent_after_s,
            unreported=self.unreported,
            manager=self.manager,
            create_profiles_in=self.create_profiles_in,
        )
