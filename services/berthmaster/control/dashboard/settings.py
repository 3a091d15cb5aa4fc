"""What the dashboard can be told."""

from dataclasses import dataclass
from pathlib import Path

from berthmaster.control.dashboard.core.access import network_problem
from berthmaster.lib.runtime.ports import PAGE_PORT
from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class DashboardSettings(CommonSettings):
    """One dashboard."""

    page_host: str = setting(
        "127.0.0.1",
        help="where the page listens; beyond this machine only with --people-file, or with "
        "--anybody-may-look",
    )
    page_port: int = setting(
        PAGE_PORT, least=0, most=65535, help="port of the page; 0 = any free one (the log says it)"
    )
    page_names: tuple[str, ...] = setting(
        (),
        help="host names that browsers call it by; requests for other names are refused, so that "
        "no page of elsewhere can pretend to be this one. None named = on loopback this "
        "machine's names, else any",
    )
    anybody_may_look: bool = setting(
        False, help="true: whoever reaches it sees everything, also beyond this machine"
    )
    people_file: Path | None = setting(
        None,
        help="file that says who may look at what and act (docs/operators/dashboard.md), read anew "
        "when it changes; none = on loopback anybody may look, and nobody act",
    )
    proxies: tuple[str, ...] = setting(
        (),
        check=network_problem,
        help="addresses or networks of the reverse proxies whose word on who somebody is counts",
    )
    identity_header: str = setting(
        "X-Forwarded-User", help="in which such a proxy names the person"
    )
    hands_dir: Path | None = setting(
        None,
        help="folder with steward.creds and tenant.NAME.creds, by which people act who may; none "
        "= nobody acts by way of the page",
    )
    most_connections: int = setting(
        1_000, least=10, most=50_000, help="connections at once; more are closed at once"
    )
