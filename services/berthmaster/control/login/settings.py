"""The login service's settings."""

from dataclasses import dataclass
from pathlib import Path

from berthmaster.lib.runtime.settings import CommonSettings, required, setting


@dataclass(frozen=True, kw_only=True)
class LoginSettings(CommonSettings):
    mapping_file: Path = required(
        help="JSON file of trusted token issuers, and of their tokens' tenants and clusters"
    )
    signers_dir: Path = required(
        help="folder `login` of the folder of keys, with the signing keys of tenants and clusters"
    )
    life_s: float = setting(
        3600.0,
        least=10,
        most=86_400,
        help=(
            "seconds until an issued credential expires; rights last so long, whatever happens "
            "to the token or the mapping"
        ),
    )
