"""The settings that the cores use. Pure."""

from typing import Final

import msgspec

from berthmaster.lib.ocm.core.pace import Rules
from berthmaster.lib.ocm.core.telling import SILENT_AFTER_S

DEFAULT_NAME: Final = "resource-usage-score"  # the name of Open Cluster Management's own addon


class OcmPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all objects; times in seconds."""

    rules: Rules = Rules()
    score_name: str = DEFAULT_NAME
    silent_after_s: float = SILENT_AFTER_S
    unreported: bool = True  # write the worst score for clusters without an agent, rather than none
    manager: str = "berthmaster"
    create_profiles_in: str = ""  # namespace; "" = create none
