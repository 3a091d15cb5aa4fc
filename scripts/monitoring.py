"""Writes what the teams' own tools need: Grafana's dashboards and Prometheus' rules.

`python -m scripts.monitoring write`, or `check`, which says whether what is there is what would be
written. One table of panels and one of alerts is all there is to change; a test holds every name in
them against the services' metrics.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
MADE_BY: Final = "# Made by scripts/monitoring.py.\n"
# Where runbooks are: an external label of Prometheus, else the file of this repository.
RUNBOOKS: Final = (
    "{{ with $externalLabels.runbooks }}{{ . }}{{ else }}docs/troubleshooting/alerts.md{{ end }}"
)
# For a Prometheus of your own, and for the chart, which reads no file outside of it.
RULES_FILES: Final = ("deploy/prometheus/rules.yaml", "deploy/chart/rules.yaml")
JOB: Final = 'job="berthmaster"'


class Panel(NamedTuple):
    """One picture: expressions with their legends, and the unit that they are in."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    about: str = ""


class Alert(NamedTuple):
    """One rule, and the words for who is called."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str


def _quantile(share: float, metric: str, by: str = "", range_: str = "5m", only: str = "") -> str:
    keys = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({keys}) (rate({metric}_bucket{only}[{range_}])))"


DASHBOARDS: Final[Mapping[str, Sequence[Panel]]] = {
    "fleet": (
        Panel(
            "Allocated and fragmented GPUs",
            "percent",
            (
                ("max(berth_resolver_allocation_percent)", "allocated"),
                ("max(berth_resolver_fragmentation_percent)", "fragmented (of free)"),
            ),
            "Allocated: share of all healthy GPUs. Fragmented: share of free GPU capacity "
            "unusable for the observed mix of jobs.",
        ),
        Panel(
            "Workloads",
            "short",
            (
                ("max(berth_resolver_live)", "placed"),
                ("max(berth_resolver_waiting)", "pending"),
            ),
        ),
        Panel(
            "Placements per second",
            "ops",
            (("sum(rate(berth_resolver_placements_total[5m]))", "placements"),),
        ),
        Panel(
            "Age of the oldest input of a cluster's score",
            "s",
            (("max by (cluster) (berth_scorer_input_age_seconds)", "{{cluster}}"),),
            "Normally a few seconds. A silent cluster gets no new placements.",
        ),
        Panel(
            "Messages received by the scorer",
            "ops",
            (("sum by (kind) (rate(berth_scorer_messages_total[5m]))", "{{kind}}"),),
        ),
        Panel(
            "Facts and open polls at the door",
            "short",
            (
                ("sum(berth_door_facts)", "facts"),
                ("sum(berth_door_polls)", "open polls of agents"),
            ),
        ),
        Panel(
            "Dropped samples",
            "ops",
            (("sum(rate(berth_door_telemetry_dropped_total[5m])) or vector(0)", "telemetry"),),
        ),
    ),
    "queues": (
        Panel(
            "Queue wait, p50",
            "s",
            ((_quantile(0.5, "berth_resolver_wait_seconds", "queue", "15m"), "{{queue}}"),),
            "From submission to the first placement.",
        ),
        Panel(
            "Queue wait, p95",
            "s",
            ((_quantile(0.95, "berth_resolver_wait_seconds", "queue", "15m"), "{{queue}}"),),
        ),
        Panel(
            "First placements per minute",
            "short",
            (("sum by (queue) (rate(berth_resolver_wait_seconds_count[5m])) * 60", "{{queue}}"),),
        ),
        Panel(
            "Submission to success, p95",
            "s",
            ((_quantile(0.95, "berth_resolver_completion_seconds", "queue", "1h"), "{{queue}}"),),
        ),
        Panel(
            "Evictions per minute",
            "short",
            (
                (
                    "(sum by (queue) (rate(berth_resolver_evictions_total[5m])) * 60) or vector(0)",
                    "{{queue}}",
                ),
            ),
        ),
        Panel("Fairness", "short", (("max(berth_resolver_fairness)", "1 = all equal"),)),
        Panel(
            "Backed off workloads",
            "short",
            (("max(berth_resolver_suspended_workloads)", "suspended"),),
        ),
    ),
    "services": (
        Panel("Targets", "short", ((f"up{{{JOB}}}", "{{instance}}"),)),
        Panel(
            "Requests per second by outcome",
            "ops",
            (("sum by (outcome) (rate(berth_gateway_requests_total[5m]))", "{{outcome}}"),),
        ),
        Panel(
            "Submit latency, p99",
            "s",
            ((_quantile(0.99, "berth_gateway_request_seconds", "verb"), "{{verb}}"),),
        ),
        Panel(
            "Decision and commit latency, p99",
            "s",
            (
                (_quantile(0.99, "berth_resolver_decide_seconds"), "decide"),
                (_quantile(0.99, "berth_resolver_commit_seconds"), "commit"),
                (_quantile(0.99, "berth_door_tell_seconds"), "store agent events"),
            ),
        ),
        Panel(
            "Refused commits",
            "ops",
            (("sum(rate(berth_resolver_refused_commits_total[5m]))", "refused"),),
        ),
        Panel(
            "Event loop lag",
            "s",
            (('max by (job, instance) ({__name__=~"berth_.+_loop_lag_seconds"})', "{{instance}}"),),
        ),
        Panel(
            "Writes not stored by NATS",
            "short",
            (('max by (instance) ({__name__=~"berth_.+_bus_not_storing"})', "{{instance}}"),),
        ),
        Panel(
            "Usage store",
            "short",
            (
                ("max(berth_usage_open_jobs)", "open jobs"),
                ("max(berth_usage_unstored_jobs)", "ended jobs not stored yet"),
                ("max(berth_usage_store_failing)", "store unavailable"),
            ),
        ),
        Panel(
            "Usage store write latency, p99",
            "s",
            ((_quantile(0.99, "berth_usage_write_seconds"), "write"),),
        ),
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{{{JOB}}}", "{{instance}}"),)),
        Panel(
            "CPU",
            "short",
            ((f"rate(process_cpu_seconds_total{{{JOB}}}[5m])", "{{instance}}"),),
        ),
    ),
}

ALERTS: Final = (
    Alert(
        "BerthTargetDown",
        f"up{{{JOB}}} == 0 and max_over_time(up{{{JOB}}}[1h]) == 1",
        "2m",
        "critical",
        "{{ $labels.instance }} does not answer Prometheus",
    ),
    Alert(
        "BerthNobodyDecides",
        "max(berth_resolver_deciding) < 1 or absent(berth_resolver_deciding)",
        "1m",
        "critical",
        "No resolver is deciding, so no job is placed",
    ),
    Alert(
        "BerthBusNotStoring",
        'max by (instance) ({__name__=~"berth_.+_bus_not_storing"}) > 0',
        "1m",
        "critical",
        "NATS does not store writes of {{ $labels.instance }}",
    ),
    Alert(
        "BerthLogDamaged",
        'max by (instance) ({__name__=~"berth_.+_log_damaged"}) > 0',
        "0m",
        "critical",
        "{{ $labels.instance }} found the event log damaged or replaced; scheduling stopped",
    ),
    Alert(
        "BerthLogFull",
        "max(berth_gateway_log_full) > 0",
        "1m",
        "critical",
        "The event log is nearly full, and new jobs are refused",
    ),
    Alert(
        "BerthWorkloadsFrozen",
        "max(berth_gateway_frozen_workloads) > 0",
        "5m",
        "warning",
        "{{ $value }} workloads are frozen because of unreadable or missing events",
    ),
    Alert(
        "BerthWorkloadsSuspended",
        "max(berth_resolver_suspended_workloads) > 0",
        "10m",
        "warning",
        "{{ $value }} workloads are backed off because the event log refuses their commits",
    ),
    Alert(
        "BerthClusterSilent",
        "max by (cluster) (berth_scorer_input_age_seconds) > 60",
        "2m",
        "warning",
        "Cluster {{ $labels.cluster }} is silent for {{ $value | humanizeDuration }}",
    ),
    Alert(
        "BerthGpusFaulty",
        'sum by (cluster) (berth_scorer_closed_gpus{fault=~"lost|ecc"}) > 0',
        "15m",
        "warning",
        "{{ $value }} GPUs of cluster {{ $labels.cluster }} are faulty and get no new pods",
    ),
    Alert(
        "BerthWaitsLong",
        f"{_quantile(0.95, 'berth_resolver_wait_seconds', 'queue', '1h')} > 3600",
        "30m",
        "warning",
        "p95 wait of jobs in queue {{ $labels.queue }} is above 1 h",
    ),
    Alert(
        "BerthSubmitsSlow",
        f"{_quantile(0.99, 'berth_gateway_request_seconds', 'verb')} > 1",
        "10m",
        "warning",
        "p99 latency of {{ $labels.verb }} is above 1 s",
    ),
    Alert(
        "BerthCommitsRefused",
        "sum(rate(berth_resolver_refused_commits_total[5m])) > 1",
        "10m",
        "warning",
        "More than 1 commit a second is refused; two resolvers may be deciding",
    ),
    Alert(
        "BerthLoopBlocked",
        'max by (instance) ({__name__=~"berth_.+_loop_lag_seconds"}) > 1',
        "5m",
        "warning",
        "Event loop lag of {{ $labels.instance }} is above 1 s (CPU shortage or overload)",
    ),
    Alert(
        "BerthMessagesUnreadable",
        'sum by (instance) (increase({__name__=~"berth_.+_unreadable_total"}[15m])) > 0',
        "0m",
        "warning",
        "{{ $labels.instance }} received unreadable messages (`berth problems dead`)",
    ),
    Alert(
        "BerthAccountsFailing",
        "max(berth_accounts_failing) > 0",
        "10m",
        "warning",
        "NATS accounts are not synchronized, so a removed tenant may still connect",
    ),
    Alert(
        "BerthUsageStoreAway",
        "max(berth_usage_store_failing) > 0",
        "5m",
        "warning",
        "The usage store is unavailable; it catches up from the event log later",
    ),
    Alert(
        "BerthUsageBehind",
        "max(berth_usage_behind_seconds) > 3600",
        "30m",
        "warning",
        "The usage store is {{ $value | humanizeDuration }} behind the event log",
    ),
    Alert(
        "BerthPricesWrong",
        "max(berth_usage_prices_wrong) > 0",
        "10m",
        "warning",
        "The prices file is invalid; reports use the previous prices",
    ),
    Alert(
        "BerthNoticesUndelivered",
        "sum(increase(berth_usage_undelivered_notices_total[1h])) > 0",
        "0m",
        "warning",
        "{{ $value | humanize }} webhook deliveries failed within an hour",
    ),
    Alert(
        "BerthWebhooksWrong",
        "max(berth_usage_webhooks_wrong) > 0",
        "10m",
        "warning",
        "The webhooks file is invalid; the previous one is used",
    ),
)


def expressions() -> Iterator[tuple[str, str]]:
    """(where it stands, what it says) of all."""
    for name, panels in DASHBOARDS.items():
        for panel in panels:
            for expr, _ in panel.lines:
                yield f"{name}: {panel.title}", expr
    for alert in ALERTS:
        yield alert.name, alert.expr


def rules() -> dict[str, Any]:
    """As Prometheus reads them."""
    found = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "runbook_url": f"{RUNBOOKS}#{alert.name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "berthmaster", "rules": found}]}


def dashboard(name: str) -> dict[str, Any]:
    """As Grafana imports it; the data source is asked for then."""
    panels = []
    for number, panel in enumerate(DASHBOARDS[name]):
        targets = [
            {"expr": expr, "legendFormat": legend, "refId": chr(ord("A") + at)}
            for at, (expr, legend) in enumerate(panel.lines)
        ]
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.about,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
                "fieldConfig": {
                    "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}},
                    "overrides": [],
                },
                "options": {"legend": {"showLegend": True, "displayMode": "list"}},
                "targets": targets,
            }
        )
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    return {
        "title": f"Berthmaster: {name}",
        "uid": f"berthmaster-{name}",
        "tags": ["berthmaster"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def files() -> dict[Path, str]:
    """Everything that is written."""
    rules_text = MADE_BY + _yaml([rules()])
    found = dict.fromkeys((ROOT / each for each in RULES_FILES), rules_text)
    for name in DASHBOARDS:
        text = json.dumps(dashboard(name), indent=2) + "\n"
        found[ROOT / f"deploy/grafana/{name}.json"] = text
    return found


class _Plain(yaml.SafeDumper):  # type: ignore[misc] # yaml has no types
    def ignore_aliases(self, data: Any) -> bool:
        """What stands in several places is written out in each."""
        return True


def _yaml(objects: list[dict[str, Any]]) -> str:
    return "---\n".join(
        yaml.dump(each, Dumper=_Plain, sort_keys=False, width=110) for each in objects
    )


def main(argv: Sequence[str]) -> int:
    """Write, or say what differs."""
    parser = argparse.ArgumentParser(prog="python -m scripts.monitoring")
    parser.add_argument("what", choices=("write", "check"))
    what = parser.parse_args(argv).what
    stale = [path for path, text in files().items() if not _is(path, text)]
    if what == "check":
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what scripts/monitoring.py writes")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files()[path])
    print(f"{len(stale)} files written")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
