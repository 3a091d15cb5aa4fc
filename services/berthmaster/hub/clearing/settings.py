"""Settings of the clearing webhook."""

from dataclasses import dataclass
from pathlib import Path

from berthmaster.lib.runtime.settings import CommonSettings, required, setting


@dataclass(frozen=True, kw_only=True)
class ClearingSettings(CommonSettings):
    """Where the API server asks."""

    port: int = setting(
        8443,
        least=0,
        most=65535,
        help="port of the webhook, at the address of --http-host; 0 = any free one (see the log)",
    )
    certificate_dir: Path = required(
        help="folder of tls.crt and tls.key (PEM), as in a Secret of type kubernetes.io/tls; read "
        "again when renewed"
    )
