"""The Kubernetes Secret that carries a cluster's key.

deploy/chart defines the content that the agent's pod expects. The text is YAML in which every value
is a JSON string, so that no name can change its meaning.
"""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from berthmaster.cli.doctor.facts import WorkerFacts
from berthmaster.cli.doctor.findings import AGENT_RELEASE, install
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.subjects import token

SECRET_NAME: Final = "berth-agent"
EXECUTOR_ROLE: Final = "berthmaster-executor"
FIGURES_ROLE: Final = "berthmaster-figures"
# Of the agents on nodes, in a separate namespace: worker.telemetry=nodes of the chart.
TELEMETRY_NAME: Final = "berth-telemetry"
TELEMETRY_KEY: Final = "telemetry.creds"
CREDS_KEY: Final = "agent.creds"
SENTINEL_KEY: Final = "sentinel.creds"
CA_KEY: Final = "ca.crt"


def manifest(
    *,
    cluster: str,
    namespaces: Sequence[str],
    namespace: str,
    url: str,
    creds: str,
    ca: str,
    login: bool = False,
) -> str:
    """Return the Secret.

    ``namespace`` is the agent's own, and ``namespaces`` are those of its jobs. ``login``: the
    credentials are the login-only ones.
    """
    data = {
        "cluster": cluster,
        "namespaces": ",".join(namespaces),
        "url": url,
        "inbox": inbox_prefix(f"agent.{token(cluster)}"),
        SENTINEL_KEY if login else CREDS_KEY: creds,
        CA_KEY: ca,
    }
    return _secret(SECRET_NAME, namespace, data)


def manifest_of_nodes(*, cluster: str, url: str, creds: str, ca: str) -> str:
    """Return the Secret of the telemetry agents on nodes.

    All share one key, which allows only publishing GPU telemetry.
    """
    data = {
        "cluster": cluster,
        "url": url,
        "inbox": inbox_prefix(f"telemetry.{token(cluster)}"),
        TELEMETRY_KEY: creds,
        CA_KEY: ca,
    }
    return _secret(TELEMETRY_NAME, TELEMETRY_NAME, data)


def _secret(name: str, namespace: str, data: Mapping[str, str]) -> str:
    lines = [
        "apiVersion: v1",
        "kind: Secret",
        "metadata:",
        f"  name: {name}",
        f"  namespace: {json.dumps(namespace)}",
        "  labels:",
        "    app.kubernetes.io/part-of: berthmaster",
        "type: Opaque",
        "stringData:",
        *(f"  {key}: {json.dumps(value)}" for key, value in data.items()),
    ]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # an existing file may be readable by others, or be a link
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        file.write(text)


def commands(
    cluster: str, file: Path, namespace: str, namespaces: Sequence[str], *, login: bool = False
) -> list[str]:
    """Return the commands to type, in order."""
    kubectl = f"kubectl --context {shlex.quote(cluster)}"
    quoted = shlex.quote(str(file))
    values = ["role=worker", f"worker.namespaces={{{','.join(namespaces)}}}"]
    values += ["worker.login=true"] if login else []
    return [
        _install(cluster, namespace, *values),
        f"{kubectl} apply -f {quoted} && rm {quoted}",
    ]


def _install(cluster: str, namespace: str, *values: str) -> str:
    facts = WorkerFacts(name=cluster, context=cluster, installed=False)
    return install(facts, namespace, AGENT_RELEASE, *values)[0]


def commands_of_nodes(cluster: str, namespace: str, file: Path) -> list[str]:
    """Return the commands for the telemetry agents on nodes, in order."""
    kubectl = f"kubectl --context {shlex.quote(cluster)}"
    quoted = shlex.quote(str(file))
    return [
        _install(cluster, namespace, "role=worker", "worker.telemetry=nodes"),
        f"{kubectl} apply -f {quoted} && rm {quoted}",
    ]
