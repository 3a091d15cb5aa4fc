"""The page of metrics, by reading the source of the services."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from berthmaster.services import SERVICES
from scripts.reference.markdown import MADE_BY, cell, table

SOURCE: Final = Path(__file__).resolve().parents[2] / "services" / "berthmaster"
KINDS: Final = ("counter", "gauge", "histogram")
HEAD: Final = """# Metrics

{made_by}

Each service serves Prometheus metrics under `/metrics`, named `berth_SERVICE_NAME`. A counter ends
with `_total`, a histogram has `_bucket`, `_sum` and `_count`.
[Monitoring](../operators/monitoring.md) says which to watch.
"""


class Metric(NamedTuple):
    """One metric as the source declares it."""

    package: str  # "berthmaster.control.gateway"; of lib, "berthmaster.lib.nats"
    kind: str
    name: str  # without the prefix of its service
    help: str
    labels: tuple[str, ...]


@cache
def declared() -> tuple[Metric, ...]:
    """Return each metric that a service makes, in the order of files."""
    return tuple(_declared())


def _declared() -> Iterator[Metric]:
    for path in sorted(SOURCE.rglob("*.py")):
        package = ".".join(["berthmaster", *path.relative_to(SOURCE).parts[:2]])
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (found := _metric(package, node)) is not None:
                yield found


def _metric(package: str, call: ast.Call) -> Metric | None:
    kind = getattr(call.func, "attr", getattr(call.func, "id", "")).lstrip("_")
    if kind not in KINDS or not call.args:
        return None
    name, text, labels = (*(_constant(each) for each in call.args[:3]), None, None)[:3]
    if not isinstance(name, str):
        return None
    return Metric(
        package,
        kind,
        name,
        text if isinstance(text, str) else "",
        tuple(map(str, labels)) if isinstance(labels, tuple | list) else (),
    )


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def page() -> str:
    """Return the page: metrics of every service first, then those of each."""
    by_package: dict[str, list[Metric]] = {}
    for metric in declared():
        by_package.setdefault(metric.package, []).append(metric)
    named = {row.package: row.name for row in SERVICES.values()}
    shared = [each for package, all_ in by_package.items() if package not in named for each in all_]
    parts = [HEAD.format(made_by=MADE_BY), "## Shared by services\n", _table("SERVICE", shared)]
    for package, service in named.items():
        if package in by_package:
            parts += [f"## {service}\n", _table(service, by_package[package])]
    return "\n".join(parts)


def _table(service: str, metrics: list[Metric]) -> str:
    unique = dict.fromkeys(metrics)
    rows = (
        (
            f"`berth_{service.replace('-', '_')}_{each.name}{'_total' * (each.kind == 'counter')}`",
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            cell(each.help),
        )
        for each in sorted(unique, key=lambda metric: metric.name)
    )
    return table(("metric", "kind", "labels", "meaning"), rows) + "\n"
