"""Dashboards and alerts: what is written is what the tables say, and every metric in them exists.

That a real Prometheus takes them and gets figures is tested in tests/pipeline/test_prometheus.py.
"""

import functools
import re
from pathlib import Path

import pytest
import yaml

from berthmaster.services import SERVICES
from scripts import monitoring
from scripts.reference.metrics import declared
from tests.support.chart import one, pod_of, render

ROOT = Path(__file__).parents[3]
ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
OF_EVERY_PROCESS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}


@functools.cache
def known() -> set[str]:
    """Every name that a scrape may show. What is made below the services is any service's."""
    found = set(OF_EVERY_PROCESS)
    for metric in declared():
        own = [row.name for row in SERVICES.values() if row.package == metric.package]
        for service in own or SERVICES:
            prefix = f"berth_{service.replace('-', '_')}_{metric.name}"
            found |= {prefix + end for end in ENDINGS[metric.kind]}
    return found


def names_in(expr: str) -> tuple[set[str], set[str]]:
    """(metrics, patterns of metrics) that an expression names."""
    patterns = set(re.findall(r'__name__=~"([^"]+)"', expr))
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", expr)
    plain = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", plain)
    words = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", plain))
    return {word for word in words if word.startswith(("berth_", "process_", "up"))}, patterns


@pytest.mark.parametrize(("where", "expr"), list(monitoring.expressions()), ids=lambda it: it[:40])
def test_every_metric_that_is_named_exists(where: str, expr: str) -> None:
    metrics, patterns = names_in(expr)
    assert metrics or patterns, where
    assert metrics <= known(), where
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in known()), (where, pattern)


def test_a_metric_that_is_not_there_would_be_noticed() -> None:
    metrics, _ = names_in('sum by (queue) (rate(berth_resolver_wait_minutes_bucket{a="b"}[5m]))')
    assert metrics == {"berth_resolver_wait_minutes_bucket"}
    assert not metrics <= known()
    assert {"berth_usage_store_failing", "berth_gateway_request_seconds_bucket"} <= known()


def test_the_files_are_what_the_tables_say() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in monitoring.files().items()
        if not path.is_file() or path.read_text() != text
    ]
    assert stale == [], "run `python -m scripts.monitoring write`"


def test_every_alert_has_its_place_among_the_runbooks() -> None:
    text = (ROOT / "docs" / "troubleshooting" / "alerts.md").read_text()
    headings = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert headings == [alert.name for alert in monitoring.ALERTS]
    for rule in monitoring.rules()["groups"][0]["rules"]:
        assert rule["annotations"]["runbook_url"].endswith(f"#{rule['alert'].lower()}")


def test_operators_objects_scrape_the_containers_of_both_sides() -> None:
    values = {
        "hub": {"services": ["login", "karmada", "ocm", "admission"]},
        "worker": {"services": ["claims"], "telemetry": "dcgm"},
    }
    objects = render("both", {**values, "monitoring": True})
    monitor = one(objects, "PodMonitor")["spec"]
    [selector] = monitor["selector"]["matchExpressions"]
    assert (selector["key"], selector["operator"]) == ("app.kubernetes.io/name", "In")
    assert selector["values"] == ["berth-hub", "berth-accounts", "berth-agent"]
    scraped = {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]}
    pods = [pod_of(objects, name) for name in selector["values"]]
    assert (
        scraped
        == {each["ports"][0]["name"] for pod in pods for each in pod["spec"]["containers"]}
        == {row.name for row in SERVICES.values() if row.port}
    )
    for pod, name in zip(pods, selector["values"], strict=True):
        assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == name
        # The label that becomes `job`, by which the rules know their targets.
        assert pod["metadata"]["labels"][monitor["jobLabel"]] == "berthmaster"
    plain = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())
    assert one(objects, "PrometheusRule")["spec"] == plain
    kinds = {each["kind"] for each in render("both")}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
