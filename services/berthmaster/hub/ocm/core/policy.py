"""What of the settings the cores go by. Pure."""

from typing import Final

import msgspec

from berthmaster.lib.ocm.core.pace import Rules
from berthmaster.lib.ocm.core.telling import SILENT_AFTER_S

DEFAULT_NAME: Final = "resource-usage-score"  # of Open Cluster Management's own addon


class OcmPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The same for every object; times in seconds."""

    rules: Rules = Rules()
    score_name: str = DEFAULT_NAME
    silent_after_s: float = SILENT_AFTER_S
    unreported: bool = True  # clusters without an agent get the worst score, rather than none
    manager: str = "berthmaster"
    create_profiles_in: str = ""  # "" = make none
