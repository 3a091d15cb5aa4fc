"""Settings of the ocm service."""

from dataclasses import dataclass

from berthmaster.hub.ocm.core.policy import DEFAULT_NAME, OcmPolicy
from berthmaster.hub.ocm.core.profiles import nameable
from berthmaster.lib.kube.service_client import ProfileSettings
from berthmaster.lib.runtime.settings import policy_from, setting


def _object_name(text: str) -> str:
    return "" if nameable(text) else "the name of an object: a-z, 0-9, - and ., at most 253"


def _namespace(text: str) -> str:
    good = not text or (nameable(text) and "." not in text and len(text) <= 63)
    return "" if good else "the name of a namespace, or nothing"


@dataclass(frozen=True, kw_only=True)
class OcmSettings(ProfileSettings):
    """Settings with unit and reason of the default."""

    score_name: str = setting(
        DEFAULT_NAME,
        check=_object_name,
        help=(
            "name of the AddOnPlacementScores; the default is that of OCM's own addon, for "
            "existing Placements. The Role names it too"
        ),
    )
    unreported: bool = setting(
        True,
        help=(
            "give managed clusters without an agent the worst score; otherwise they have none, "
            "which OCM counts as 0 and may prefer"
        ),
    )
    create_profiles_in: str = setting(
        "",
        check=_namespace,
        help=(
            "namespace for ClusterProfiles of reporting clusters without one; empty = none are "
            "created"
        ),
    )

    @property
    def policy(self) -> OcmPolicy:
        """Return the settings that the cores use."""
        return policy_from(OcmPolicy, self)
