"""The processes of a gang, as kubelets would start them: what their pods say, in real processes."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.patience import hang_s

INDEX: Final = "batch.kubernetes.io/job-completion-index"
FIELD: Final = f"metadata.annotations['{INDEX}']"
_WORKER: Final = """
import json, os, socket
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host = os.environ["MASTER_ADDR"]
assert host.endswith("." + os.environ["BERTH_SERVICE"]), host
where = json.loads(os.environ["NAMES"])[host], int(os.environ["PORT"])
if rank == 0:
    with socket.create_server(where) as server:
        seen = sorted(json.loads(server.accept()[0].makefile().readline()) for _ in range(size - 1))
    print(json.dumps(seen), flush=True)
else:
    for _ in range(500):
        try:
            with socket.create_connection(where, timeout=10) as one:
                one.sendall(json.dumps([rank, int(os.environ["NODE_RANK"])]).encode() + b"\\n")
            break
        except ConnectionRefusedError:
            __import__("time").sleep(0.02)
"""


def pod_env(pod: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a pod that a Job's controller has made."""
    [container] = pod["spec"]["containers"]
    return env_of(container, int(pod["metadata"]["annotations"][INDEX]))


def env_of(container: Mapping[str, Any], index: int) -> dict[str, str]:
    """As a kubelet makes it for the pod with this index, ``$(…)`` included."""
    env: dict[str, str] = {}
    for one in container["env"]:
        if "valueFrom" in one:
            if one["valueFrom"].get("fieldRef", {}).get("fieldPath") == FIELD:
                env[one["name"]] = str(index)
            continue
        value = one["value"]
        for name, known in env.items():
            value = value.replace(f"$({name})", known)
        env[one["name"]] = value
    return env


def meet(envs: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> list[str]:
    """Run a process with each of these; what each of them says. ``names``: what a cluster's DNS
    would answer. The one of rank 0 waits for the others and says their ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])  # all pods are this machine
    told = {"NAMES": json.dumps(dict(names)), "PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            env={**os.environ, **env, **told},
            stdout=subprocess.PIPE,
            text=True,
        )
        for env in envs
    ]
    outs = [process.communicate(timeout=hang_s())[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outs
