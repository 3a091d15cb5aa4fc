"""The install page, word for word, until a Job made with kubectl runs on the best worker.

API servers, Kueue, helm and kubectl are real. No container runtime is here: where the page waits
for a rollout, the containers of the installed pods run as processes, and `kubectl exec` runs its
command beside the folder of the pod. tests/containers/test_registry.py pushes images.
"""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kueue.names import DISPATCHER
from scripts.images import write_values
from tests.cluster.deploying import OURS, HubPods, merged, own_mounts, run_agent, secret_of
from tests.pipeline.running import environment
from tests.support.chart import DEPLOY, Manifest, helm, pod_of
from tests.support.containers import Pod
from tests.support.patience import hang_s

DOCS: Final = DEPLOY.parent / "docs" / "operators"
BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
KUBECTL: Final = """#!/bin/bash
all="$*"
if [[ "${all%% -- *}" == *" exec berth-accounts-0" ]]; then
  while [[ $1 != -- ]]; do shift; done; shift
  exec env BERTH_DATA="$DATA" "${@/#\\/data\\//$DATA/}"
fi
exec KUBECTL "$@"
"""


def section(page: str, first: str, last: str) -> str:
    """The text of a page from one heading to another."""
    text = (DOCS / page).read_text()
    assert first in text
    assert last in text
    return text.partition(first)[2].partition(last)[0]


def typed(text: str) -> list[str]:
    """The commands of a text, one a line; those with a prompt where a block shows output too."""
    found = []
    for _, language, block in BLOCK.findall(text):
        if language in ("", "shell"):
            lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
            prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            found += prompted or ([] if language == "" else lines)
    return found


class Operator:
    """Follows the pages with the names of this bed in place of theirs."""

    def __init__(self, planes: Planes, namespace: str, folder: Path, owned: ExitStack) -> None:
        self._planes, self._folder, self._owned = planes, folder, owned
        self._inside = own_mounts()
        self._names = {"HUB": "hub", "W1": "worker-1", "W2": "worker-2", "ml": namespace}
        self.hub: HubPods | None = None
        self.agents: dict[str, Pod] = {}
        (folder / "deploy" / "run").mkdir(parents=True)
        for name in ("chart", "policies"):
            (folder / "deploy" / name).symlink_to(DEPLOY / name)
        self.digests = {"gateway": f"sha256:{'a' * 64}"}
        values = folder / "deploy" / "run" / "images.yaml"
        write_values(values, "registry.example/berth", "0.1.0", self.digests)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(merged({each.name: each for each in planes})))
        programs = folder / "programs"
        programs.mkdir()
        kubectl = programs / "kubectl"
        kubectl.write_text(KUBECTL.replace("KUBECTL", str(shutil.which("kubectl"))))
        kubectl.chmod(0o755)
        first = [str(programs), str(Path(sys.executable).parent), str(Path(helm()).parent)]
        self._env = environment(folder) | {
            "PATH": ":".join([*first, os.environ["PATH"]]),
            "KUBECONFIG": str(kubeconfig),
            "DATA": str(folder / "data"),
        }

    def types(self, line: str) -> str:
        """Run a command of a page; what it prints."""
        line = re.sub(r"\b(HUB|W1|W2|ml)\b", lambda found: self._names[found[0]], line)
        if self.hub is not None:
            line = line.replace("hub.example.com:4222", f"localhost:{self.hub.bus.port}")
        line = line.replace("hub.example.com", "localhost")
        if "rollout status" in line:
            self._rolls_out(line)
            return ""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=hang_s(),
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def uninstalls(self) -> None:
        """Take away what the page installed."""
        for context, release in (("HUB", "hub"), ("W1", "agent"), ("W2", "agent")):
            self.types(f"helm --kube-context {context} -n {OURS} uninstall berth-{release}")

    def _rolls_out(self, line: str) -> None:
        found = re.search(r"--context (\S+) .* (berth-hub|berth-agent)$", line)
        assert found, line
        plane = self._planes[found[1]]
        if found[2] == "berth-agent":
            template = pod_of([of(plane, "deployments", "berth-agent")], "berth-agent")
            secret = {name: each.decode() for name, each in secret_of(plane, "berth-agent").items()}
            at = self._folder / plane.name
            agent = run_agent(self._owned, plane, template, secret, at, self._inside)
            self.agents[plane.name] = agent
            return
        names = ("berth-accounts", "berth-nats", "berth-hub")
        objects = [of(plane, "statefulsets", name) for name in names]
        config = plane.api.get(f"/api/v1/namespaces/{OURS}/configmaps/berth-nats")
        if self.hub is None:
            objects.append(config)
            self.hub = HubPods(self._owned, plane, objects, self._folder, self._inside)
        else:
            assert set(self.hub.hub.end().values()) == {0}
            self.hub.start(objects)


@pytest.mark.timeout(1800)  # a busy machine starts thirty processes slowly
@pytest.mark.skipif("BERTH_ALL" not in os.environ, reason="needs minutes: --all")
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_install_page_word_for_word_runs_a_job_on_the_best_worker(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    make_nodes(planes["worker-1"], [gpu_node("a", gpus=2)])
    make_nodes(planes["worker-2"], [gpu_node("b", gpus=8)])
    workers = ["worker-1", "worker-2"]
    with ExitStack() as owned:
        options = Options(policy=False)  # the chart brings its own
        k = owned.enter_context(Kueue(planes, namespace, options=options, clusters=workers))
        operator = Operator(planes, namespace, tmp_path, owned)
        page = "install.md"
        for line in typed(section(page, "## 2. Install the hub", "## 3. ")):
            operator.types(line.replace("role=hub", "role=hub --set bus.replicas=1"))
        each_worker = typed(section(page, "## 3. Install each worker", "## 4. "))
        for line in each_worker:
            operator.types(line)
        for line in each_worker:
            operator.types(line.replace("W1", "W2"))
        connected, top, ready = map(operator.types, typed(section(page, "## 4. Check", "## 5. ")))
        assert all(f"{name} " in text for name in workers for text in (connected, top))
        assert "Nothing blocks the mode observe." in ready

        for line in typed(section("dispatch.md", "## 3. Dispatch", "**Back**")):
            if "kueue-system" in line:  # Kueue's manager is a process here
                k.restart_manager("hub", dispatcher=DISPATCHER)
            else:
                operator.types(line)
        running = section(page, "## 5. Run a Job", "## One name")
        [job] = [text for _, language, text in BLOCK.findall(running) if language == "yaml"]
        (tmp_path / "job.yaml").write_text(job.replace("namespace: ml", f"namespace: {namespace}"))
        create, jobs, *tenant = typed(running)
        operator.types(create)
        assert operator.hub is not None
        operator.hub.hub.until(lambda: k.has("train", "Finished"), "the Job has ended")
        assert k.cluster_of("train") == "worker-2"
        assert "train" in operator.types(jobs)
        for line in tenant:
            operator.types(line)
        assert "NATS USER JWT" in (tmp_path / f"{namespace}.creds").read_text()
        images = {
            each["name"]: each["image"]
            for each in pod_of([of(planes.hub, "statefulsets", "berth-hub")], "berth-hub")["spec"][
                "containers"
            ]
        }
        gateway = f"registry.example/berth/gateway:0.1.0@{operator.digests['gateway']}"
        assert (images["gateway"], images["scorer"]) == (
            gateway,
            "registry.example/berth/scorer:0.1.0",
        )
        operator.uninstalls()


def of(plane: Plane, kind: str, name: str) -> Manifest:
    """A workload of ours, as it is installed."""
    return plane.api.get(f"/apis/apps/v1/namespaces/{OURS}/{kind}/{name}")
