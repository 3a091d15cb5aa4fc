"""What of the settings the cores go by. Pure."""

from typing import Final

import msgspec

from berthmaster.hub.ocm.core.pace import Rules

DEFAULT_NAME: Final = "resource-usage-score"  # of Open Cluster Management's own addon


class OcmPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The same for every object; times in seconds."""

    rules: Rules = Rules()
    score_name: str = DEFAULT_NAME
    silent_after_s: float = 30.0
    unreported: bool = True  # clusters without an agent get the worst score, rather than none
    manager: str = "berthmaster"
    create_profiles_in: str = ""  # "" = make none
