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
            "GPUs taken and of no use",
            "percent",
            (
                ("max(berth_resolver_allocation_percent)", "taken"),
                ("max(berth_resolver_fragmentation_percent)", "of the free ones: fragmented"),
            ),
            "Taken: share of all healthy GPUs. Fragmented: free, of no use to the jobs that come.",
        ),
        Panel(
            "Workloads",
            "short",
            (
                ("max(berth_resolver_live)", "have a place"),
                ("max(berth_resolver_waiting)", "wait"),
            ),
        ),
        Panel(
            "Placements a second",
            "ops",
            (("sum(rate(berth_resolver_placements_total[5m]))", "placements"),),
        ),
        Panel(
            "Oldest input of a cluster's score",
            "s",
            (("max by (cluster) (berth_scorer_input_age_seconds)", "{{cluster}}"),),
            "Some seconds at most; a cluster that is not heard of gets nothing new after a while.",
        ),
        Panel(
            "What the scorer hears",
            "ops",
            (("sum by (kind) (rate(berth_scorer_messages_total[5m]))", "{{kind}}"),),
        ),
        Panel(
            "Facts and polls at the door",
            "short",
            (
                ("sum(berth_door_facts)", "facts"),
                ("sum(berth_door_polls)", "agents that wait for news"),
            ),
        ),
        Panel(
            "Readings that were dropped",
            "ops",
            (("sum(rate(berth_door_telemetry_dropped_total[5m])) or vector(0)", "telemetry"),),
        ),
    ),
    "queues": (
        Panel(
            "Wait, half of the jobs",
            "s",
            ((_quantile(0.5, "berth_resolver_wait_seconds", "queue", "15m"), "{{queue}}"),),
            "From submission to the first placement.",
        ),
        Panel(
            "Wait, 95 of 100 jobs",
            "s",
            ((_quantile(0.95, "berth_resolver_wait_seconds", "queue", "15m"), "{{queue}}"),),
        ),
        Panel(
            "Jobs placed for the first time, a minute",
            "short",
            (("sum by (queue) (rate(berth_resolver_wait_seconds_count[5m])) * 60", "{{queue}}"),),
        ),
        Panel(
            "From submission to success, 95 of 100 jobs",
            "s",
            ((_quantile(0.95, "berth_resolver_completion_seconds", "queue", "1h"), "{{queue}}"),),
        ),
        Panel(
            "Evictions a minute",
            "short",
            (
                (
                    "(sum by (queue) (rate(berth_resolver_evictions_total[5m])) * 60) or vector(0)",
                    "{{queue}}",
                ),
            ),
        ),
        Panel("Fairness", "short", (("max(berth_resolver_fairness)", "1 = all alike"),)),
        Panel(
            "Set aside by the resolver",
            "short",
            (("max(berth_resolver_suspended_workloads)", "suspended"),),
        ),
    ),
    "services": (
        Panel("Targets", "short", ((f"up{{{JOB}}}", "{{instance}}"),)),
        Panel(
            "Requests a second by outcome",
            "ops",
            (("sum by (outcome) (rate(berth_gateway_requests_total[5m]))", "{{outcome}}"),),
        ),
        Panel(
            "Submits, 99 of 100",
            "s",
            ((_quantile(0.99, "berth_gateway_request_seconds", "verb"), "{{verb}}"),),
        ),
        Panel(
            "Deciding and storing, 99 of 100",
            "s",
            (
                (_quantile(0.99, "berth_resolver_decide_seconds"), "decide a commit"),
                (_quantile(0.99, "berth_resolver_commit_seconds"), "store a commit"),
                (_quantile(0.99, "berth_door_tell_seconds"), "store what agents say"),
            ),
        ),
        Panel(
            "Commits that lost a race",
            "ops",
            (("sum(rate(berth_resolver_refused_commits_total[5m]))", "refused"),),
        ),
        Panel(
            "Pauses of event loops",
            "s",
            (('max by (job, instance) ({__name__=~"berth_.+_loop_lag_seconds"})', "{{instance}}"),),
        ),
        Panel(
            "Writes that the bus does not take",
            "short",
            (('max by (instance) ({__name__=~"berth_.+_bus_not_storing"})', "{{instance}}"),),
        ),
        Panel(
            "Usage store",
            "short",
            (
                ("max(berth_usage_open_jobs)", "open jobs"),
                ("max(berth_usage_unstored_jobs)", "ended, not stored yet"),
                ("max(berth_usage_store_failing)", "store away"),
            ),
        ),
        Panel(
            "Usage store: writes, 99 of 100",
            "s",
            ((_quantile(0.99, "berth_usage_write_seconds"), "write"),),
        ),
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{{{JOB}}}", "{{instance}}"),)),
        Panel(
            "Processor",
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
        "{{ $labels.instance }} of Berthmaster does not answer",
    ),
    Alert(
        "BerthNobodyDecides",
        "max(berth_resolver_deciding) < 1 or absent(berth_resolver_deciding)",
        "1m",
        "critical",
        "No resolver decides: nothing is placed",
    ),
    Alert(
        "BerthBusNotStoring",
        'max by (instance) ({__name__=~"berth_.+_bus_not_storing"}) > 0',
        "1m",
        "critical",
        "The bus stores nothing of what {{ $labels.instance }} writes",
    ),
    Alert(
        "BerthLogDamaged",
        'max by (instance) ({__name__=~"berth_.+_log_damaged"}) > 0',
        "0m",
        "critical",
        "The event log is not what {{ $labels.instance }} knew: deciding has stopped",
    ),
    Alert(
        "BerthLogFull",
        "max(berth_gateway_log_full) > 0",
        "1m",
        "critical",
        "The log is nearly full: new jobs are refused",
    ),
    Alert(
        "BerthWorkloadsFrozen",
        "max(berth_gateway_frozen_workloads) > 0",
        "5m",
        "warning",
        "{{ $value }} workloads are left alone, since an event of them cannot be read",
    ),
    Alert(
        "BerthWorkloadsSuspended",
        "max(berth_resolver_suspended_workloads) > 0",
        "10m",
        "warning",
        "{{ $value }} workloads are left out, since the log refuses what is decided about them",
    ),
    Alert(
        "BerthClusterSilent",
        "max by (cluster) (berth_scorer_input_age_seconds) > 60",
        "2m",
        "warning",
        "Nothing was heard of cluster {{ $labels.cluster }} for {{ $value | humanizeDuration }}",
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
        "Jobs of queue {{ $labels.queue }} wait for more than an hour",
    ),
    Alert(
        "BerthSubmitsSlow",
        f"{_quantile(0.99, 'berth_gateway_request_seconds', 'verb')} > 1",
        "10m",
        "warning",
        "The verb {{ $labels.verb }} takes more than a second",
    ),
    Alert(
        "BerthCommitsRefused",
        "sum(rate(berth_resolver_refused_commits_total[5m])) > 1",
        "10m",
        "warning",
        "Commits lose races all the time: two may decide at once",
    ),
    Alert(
        "BerthLoopBlocked",
        'max by (instance) ({__name__=~"berth_.+_loop_lag_seconds"}) > 1',
        "5m",
        "warning",
        "{{ $labels.instance }} is late with everything: too little processor, or too much work",
    ),
    Alert(
        "BerthMessagesUnreadable",
        'sum by (instance) (increase({__name__=~"berth_.+_unreadable_total"}[15m])) > 0',
        "0m",
        "warning",
        "{{ $labels.instance }} got messages that it cannot read: see `berth problems dead`",
    ),
    Alert(
        "BerthAccountsFailing",
        "max(berth_accounts_failing) > 0",
        "10m",
        "warning",
        "The servers are not held to the accounts: a tenant that was removed may still be let in",
    ),
    Alert(
        "BerthUsageStoreAway",
        "max(berth_usage_store_failing) > 0",
        "5m",
        "warning",
        "The store of ended jobs cannot be used; it is filled from the log once it can",
    ),
    Alert(
        "BerthUsageBehind",
        "max(berth_usage_behind_seconds) > 3600",
        "30m",
        "warning",
        "The store of ended jobs is {{ $value | humanizeDuration }} behind the log",
    ),
    Alert(
        "BerthPricesWrong",
        "max(berth_usage_prices_wrong) > 0",
        "10m",
        "warning",
        "The file of prices is wrong: reports go on with the prices before",
    ),
    Alert(
        "BerthNoticesUndelivered",
        "sum(increase(berth_usage_undelivered_notices_total[1h])) > 0",
        "0m",
        "warning",
        "Webhooks were not told of {{ $value | humanize }} ends of jobs within an hour",
    ),
    Alert(
        "BerthWebhooksWrong",
        "max(berth_usage_webhooks_wrong) > 0",
        "10m",
        "warning",
        "The webhooks' file is wrong, and the one before it counts",
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
