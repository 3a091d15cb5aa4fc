"""What the login service can be told."""

from dataclasses import dataclass
from pathlib import Path

from berthmaster.lib.runtime.settings import CommonSettings, required, setting


@dataclass(frozen=True, kw_only=True)
class LoginSettings(CommonSettings):
    """Each with its unit and the reason of its default."""

    mapping_file: Path = required(
        help="whose tokens are believed, and which stand for which tenant or cluster (JSON)"
    )
    signers_dir: Path = required(
        help="folder `login` in a folder of keys: what signs users of each tenant and cluster"
    )
    life_s: float = setting(
        3600.0,
        least=10,
        most=86_400,
        help="seconds that what is signed is good for; who logged in keeps its rights so long, "
        "whatever becomes of its token or of the mapping",
    )
