"""Settings of the credentials service."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from berthmaster.hub.credentials.core.observed import LEAST_LIFE_S
from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, FRAMEWORKS
from berthmaster.hub.credentials.core.stages import CHECK_S, Times
from berthmaster.lib.kube.selector import SelectorError, parse_selector
from berthmaster.lib.kube.service_client import KueueSettings, NamespaceSettings
from berthmaster.lib.runtime.settings import setting

Origin = Literal["auto", "ocm", "bootstrap"]


def _selector(text: str) -> str:
    try:
        parse_selector(text)
    except SelectorError as error:
        return f"a label selector such as berthmaster.io/multikueue=yes ({error})"
    return ""


def _frameworks(parts: tuple[str, ...]) -> str:
    good = bool(parts) and all(part in FRAMEWORKS for part in parts)
    return "" if good else f"one or several, with commas between them, of {', '.join(FRAMEWORKS)}"


@dataclass(frozen=True, kw_only=True)
class CredentialsSettings(NamespaceSettings, KueueSettings):
    """Settings for one hub."""

    worker_namespace: str = setting(
        "berthmaster-multikueue", help="namespace of Berthmaster in each worker, created if missing"
    )
    selector: str = setting(
        "",
        check=_selector,
        help="labels of the ClusterProfiles and ManagedClusters that get access; empty = all",
    )
    frameworks: tuple[str, ...] = setting(
        DEFAULT_FRAMEWORKS,
        check=_frameworks,
        help="job frameworks, by Kueue's names, that MultiKueue may create in workers",
    )
    source: Origin = setting(
        "auto",
        help=(
            "ocm: ManagedServiceAccounts; bootstrap: operators' Secrets; auto: ocm for "
            "ManagedClusters where its kinds are served, else bootstrap"
        ),
    )
    access_providers: Path | None = setting(
        None,
        help=(
            "file with the credential plugins that ClusterProfiles in Kueue's namespace may use, "
            "for clusters without OCM and bootstrap Secret; none = no plugin runs"
        ),
    )
    lifetime_s: float = setting(
        86_400.0,
        least=LEAST_LIFE_S,
        most=30 * 86_400.0,
        help=(
            "lifetime of a token in seconds: a day, so that a worker may be unreachable for "
            "hours, and a leaked copy expires soon; API servers may grant less"
        ),
    )
    renew_after_s: float = setting(
        0.0,
        least=0,
        help=(
            "seconds after which tokens are renewed early, and plugins run again; 0 = at two "
            "thirds of their lifetime, plugins that state none each minute"
        ),
    )
    grace_s: float = setting(
        60.0,
        least=0.5,
        help="seconds for which a replaced token still works, until Kueue has reconnected",
    )

    @property
    def times(self) -> Times:
        """Return the settings that stages depend on."""
        return Times(self.renew_after_s, self.grace_s, CHECK_S)
