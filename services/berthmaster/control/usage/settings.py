"""The usage service's settings."""

from dataclasses import dataclass
from pathlib import Path

from berthmaster.lib.runtime.settings import CommonSettings, setting


def _wrong_endpoint(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    is_right = colon and scheme in ("http", "https") and rest and "@" not in rest.partition("/")[0]
    return "" if not url or is_right else "http[s]://HOST:PORT/v1/traces without a password"


def _wrong_url(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    expected = "postgresql://USER@HOST:PORT/DATABASE, or nothing"
    return "" if not url or (colon and scheme in ("postgresql", "postgres")) else expected


@dataclass(frozen=True, kw_only=True)
class UsageSettings(CommonSettings):
    store_dir: Path = setting(
        Path(".berth/usage"),
        help="folder of the SQLite store, created if missing",
    )
    postgres_url: str = setting(
        "",
        secret=True,
        check=_wrong_url,
        help=(
            "PostgreSQL store in place of SQLite: postgresql://USER@HOST:PORT/DATABASE (needs "
            "the extra `postgres`); put the password into PGPASSWORD or PGPASSFILE"
        ),
    )
    retention_days: float = setting(
        400.0,
        least=1,
        most=36_500,
        help=(
            "days for which ended jobs are kept, in whole months: a year and a month to compare"
            " with; the archive keeps event histories for a year"
        ),
    )
    owner_label: str = setting(
        "owner",
        help=(
            "job label with the owner for reports; without the label, the hub object that the "
            "job was made for"
        ),
    )
    prices_file: Path | None = setting(
        None,
        help=(
            'JSON file of prices per GPU-hour: {"currency": "EUR", "gpu_hour": {"H100": 2.9}}; '
            "read again after changes; none = no cost in reports"
        ),
    )
    traces_endpoint: str = setting(
        "",
        check=_wrong_endpoint,
        help="URL of an OpenTelemetry collector that gets a trace of each job, by OTLP over HTTP, "
        'such as http://collector:4318/v1/traces; "" = no traces (needs the extra `otel`); '
        "headers come from OTEL_EXPORTER_OTLP_HEADERS",
    )
    webhooks_file: Path | None = setting(
        None,
        help=(
            "JSON file of webhooks for ended jobs (docs/operators/webhooks.md); read again after "
            "changes; none = no webhooks"
        ),
    )
