"""The dashboard's settings."""

from dataclasses import dataclass
from pathlib import Path

from berthmaster.control.dashboard.core.access import network_problem
from berthmaster.lib.runtime.ports import PAGE_PORT
from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class DashboardSettings(CommonSettings):
    page_host: str = setting(
        "127.0.0.1",
        help=(
            "address of the dashboard; other addresses than loopback need --people-file or "
            "--anybody-may-look"
        ),
    )
    page_port: int = setting(
        PAGE_PORT, least=0, most=65535, help="port of the dashboard; 0 = any free one (see the log)"
    )
    page_names: tuple[str, ...] = setting(
        (),
        help=(
            "host names of the dashboard in browsers; requests for other names are refused, "
            "against DNS rebinding. none = this machine's names on loopback, else any"
        ),
    )
    anybody_may_look: bool = setting(
        False, help="true: every visitor sees everything, also from other machines"
    )
    people_file: Path | None = setting(
        None,
        help=(
            "JSON file of users and their rights (docs/operators/dashboard.md), read again after "
            "changes; none = on loopback every visitor may look, and none may act"
        ),
    )
    proxies: tuple[str, ...] = setting(
        (),
        check=network_problem,
        help="addresses or networks of reverse proxies that may name the user",
    )
    identity_header: str = setting(
        "X-Forwarded-User", help="header in which such a proxy names the user"
    )
    hands_dir: Path | None = setting(
        None,
        help=(
            "folder with steward.creds and tenant.NAME.creds for actions of users; none = no "
            "actions"
        ),
    )
    most_connections: int = setting(
        1_000, least=10, most=50_000, help="maximum number of connections; more are closed at once"
    )
