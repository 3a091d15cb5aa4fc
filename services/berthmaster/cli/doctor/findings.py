"""The parts of a diagnosis, and texts shared by hub and worker."""

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from berthmaster.cli.doctor.facts import (
    ClusterFacts,
    FailingKind,
    HubFacts,
    ManagerLife,
    Right,
    Survey,
)
from berthmaster.lib.kueue import versions

# Missing rights -> (commands that grant them, commands that revoke them).
Cure = Callable[[tuple[Right, ...]], tuple[str, str]]
Level = Literal["ok", "note", "warning", "blocks"]
CHART: Final = "deploy/chart"
IMAGES: Final = "deploy/run/images.yaml"  # values that `scripts/images --push` writes
HUB_RELEASE: Final = "berth-hub"  # as in docs/operators/install.md
AGENT_RELEASE: Final = "berth-agent"
MOST_SKEW_S: Final = 5.0  # seconds ahead of the local clock; behind, a lease may just be old
MOST_LAG_S: Final = 60.0
_IMAGE_VERSION: Final = re.compile(r":v?(\d+)\.(\d+)(?:\.(\d+))?")
_MANIFESTS: Final = "https://github.com/kubernetes-sigs/kueue/releases/download"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding, its meaning, and the remedy."""

    level: Level
    where: str  # the cluster
    what: str  # one line
    means: str = ""
    change: str = ""  # commands or YAML to type; "" = nothing to do
    undo: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    mode: str  # observe, dispatch, or "upgrade to VERSION"
    ready: bool  # True if nothing blocks this mode
    findings: list[Finding]


def kubectl(cluster: ClusterFacts) -> str:
    flags = [("--kubeconfig", cluster.kubeconfig), ("--context", cluster.context)]
    return " ".join(["kubectl", *(f"{flag} {shlex.quote(text)}" for flag, text in flags if text)])


def install(cluster: ClusterFacts, namespace: str, release: str, *values: str) -> tuple[str, str]:
    """Return the commands to install or change a release of the chart, and to uninstall it."""
    flags = [("--kubeconfig", cluster.kubeconfig), ("--kube-context", cluster.context)]
    shown = [f"{flag} {shlex.quote(text)}" for flag, text in flags if text]
    command = " ".join(["helm", *shown, "-n", shlex.quote(namespace)])
    sets = " ".join(f"--set {shlex.quote(value)}" for value in values)
    options = "--install --create-namespace --reset-then-reuse-values"
    chart = CHART if cluster.installed else f"{CHART} -f {IMAGES}"
    return f"{command} upgrade {options} {release} {chart} {sets}", f"{command} uninstall {release}"


def edit_manager(hub: ClusterFacts, yaml: str) -> str:
    """Return the commands to change the manager's configuration and make the manager read it."""
    lines = "\n".join(f"#   {line}" for line in yaml.splitlines())
    return (
        f"{kubectl(hub)} -n kueue-system edit configmap kueue-manager-config\n"
        "# in controller_manager_config.yaml:\n"
        f"{lines}\n"
        f"{kubectl(hub)} -n kueue-system rollout restart deployment kueue-controller-manager"
    )


def kueue_version(image: str) -> tuple[int, ...] | None:
    """Return the version of an image, such as (0, 19, 2); None = not in its tag."""
    found = _IMAGE_VERSION.search(image)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def bind(cluster: ClusterFacts, namespace: str, role: str, account: str) -> tuple[str, str]:
    """Return the commands to bind an account to a ClusterRole in one namespace, and to undo
    that."""
    command = kubectl(cluster)
    inside = f"{command} -n {shlex.quote(namespace)}"
    made = f"create rolebinding {role} --clusterrole={role} --serviceaccount={account}"
    return (
        f"{inside} {made} --dry-run=client -o yaml | {command} apply -f -",
        f"{inside} delete rolebinding {role}",
    )


def shared(cluster: ClusterFacts, survey: Survey, cure: Cure) -> Iterator[Finding]:
    """Yield the findings of hub and worker alike. ``cure`` grants missing rights."""
    where = cluster.name
    yield Finding(level="ok", where=where, what=f"API server answers, {cluster.version}")
    yield from _clock(cluster)
    for one in cluster.failing:
        yield _failing(cluster, one)
    for text in cluster.unread:
        yield Finding(
            level="note",
            where=where,
            what=f"not looked at: {text}",
            means="What depends on it is not checked here.",
        )
    yield from _kueue(cluster)
    yield from alive(cluster, is_hub=isinstance(cluster, HubFacts))
    yield from _rights(cluster, survey, cure)


def _failing(cluster: ClusterFacts, one: FailingKind) -> Finding:
    name = one.kind.split(" ", maxsplit=1)[0]
    change = f"{kubectl(cluster)} get {name} -A   # the same words, without us"
    if "." in name:
        change += (
            f"\n{kubectl(cluster)} get crd {name} -o jsonpath='{{.spec.conversion}}'"
            "   # the webhook that has to answer"
        )
    return Finding(
        level="blocks",
        where=cluster.name,
        what=f"the API server fails to show {one.kind}: {one.why}",
        means="The API server answers, and this kind alone fails. What the fleet knows of these "
        "objects is old, or nothing. The usual cause is a conversion webhook that does not run.",
        change=change,
    )


def _clock(cluster: ClusterFacts) -> Iterator[Finding]:
    skew_s = cluster.skew_s
    if skew_s is None or -MOST_LAG_S <= skew_s <= MOST_SKEW_S:
        return
    which = "ahead of" if skew_s > 0 else "behind"
    yield Finding(
        level="warning",
        where=cluster.name,
        what=f"its clock is {abs(skew_s):.0f} s {which} this machine's",
        means="Decisions do not depend on it; tokens and certificates may be refused as not yet or "
        "no longer valid.",
        change="# set one of the two clocks right; chronyc tracking shows by how much it is off",
    )


def _kueue(cluster: ClusterFacts) -> Iterator[Finding]:
    install = (
        f"{kubectl(cluster)} apply --server-side -f {_MANIFESTS}/{versions.TESTED}/manifests.yaml"
    )
    undo = f"{kubectl(cluster)} delete -f {_MANIFESTS}/{versions.TESTED}/manifests.yaml"
    version = kueue_version(cluster.kueue_image)
    shown = f" {'.'.join(map(str, version))}" if version else ""
    if not cluster.kueue_versions and any("kueue.x-k8s.io" in one.kind for one in cluster.failing):
        return
    if not cluster.kueue_versions:
        yield Finding(
            level="blocks",
            where=cluster.name,
            what="Kueue is not installed: its API is not served",
            means="MultiKueue needs Kueue on the hub and on every worker.",
            change=install,
            undo=undo,
        )
    elif "v1beta2" not in cluster.kueue_versions:
        served = ", ".join(sorted(cluster.kueue_versions))
        yield Finding(
            level="blocks",
            where=cluster.name,
            what=f"Kueue{shown} serves {served} and not v1beta2",
            means="From Kueue 0.16 on it does; older ones are not spoken to.",
            change=install,
            undo="# Kueue has no way back over this change of stored objects: back them up first",
        )
    elif version is not None and version < versions.OLDEST:
        yield Finding(
            level="blocks",
            where=cluster.name,
            what=f"Kueue{shown} is older than 0.16",
            means="What MultiKueue promises to a dispatcher is kept from 0.16 on.",
            change=install,
            undo="# apply the manifests of the version that was there",
        )
    elif version is not None and not versions.SEEN[0] <= version[:2] <= versions.SEEN[1]:
        first, last = (".".join(map(str, each)) for each in versions.SEEN)
        yield Finding(
            level="warning",
            where=cluster.name,
            what=f"Kueue{shown} is none of those that we were seen with, {first} to {last}",
            means="What we rely on in Kueue is tested against those. Another may do some of it "
            "otherwise: look in the mode observe first.",
        )
    else:
        yield Finding(level="ok", where=cluster.name, what=f"Kueue{shown} serves v1beta2")


def alive(cluster: ClusterFacts, *, is_hub: bool) -> Iterator[Finding]:
    """Check that Kueue's manager runs: its API is served either way."""
    life = cluster.kueue_life
    if life is None or not cluster.kueue_versions:
        return
    if life.wanted is None and life.renewed_s_ago is None:
        yield Finding(
            level="note",
            where=cluster.name,
            what="not seen whether Kueue's manager runs: no Deployment kueue-controller-manager "
            "and no lease of Kueue's in kueue-system",
            means="Where it is dead nothing is admitted, and nothing else says so.",
        )
        return
    why = _dead(life)
    if not why:
        ready = f"{sum(pod.ready for pod in life.pods)} of its pods ready"
        lease = "" if life.renewed_s_ago is None else ", its lease renewed lately"
        yield Finding(level="ok", where=cluster.name, what=f"Kueue's manager runs: {ready}{lease}")
        return
    run = f"{kubectl(cluster)} -n kueue-system"
    stands_still = "Nothing is admitted, cleared or sent: every queue of MultiKueue stands still."
    magnet = (
        "It admits nothing, and looks emptiest for that. We let it go last once a copy has lain "
        "there unseen, or a Workload's patience ran out there."
    )
    scaled = life.wanted == 0
    restart = f"{run} describe pods\n{run} rollout restart deployment kueue-controller-manager"
    scale = f"{run} scale deployment kueue-controller-manager --replicas"
    yield Finding(
        level="blocks" if is_hub else "warning",
        where=cluster.name,
        what=f"Kueue's manager does not run: {why}",
        means=stands_still if is_hub else magnet,
        change=f"{scale}=1" if scaled else restart,
        undo=f"{scale}=0" if scaled else "",
    )


def _dead(life: ManagerLife) -> str:
    """Return why the manager must be down, or ""."""
    age_s = life.renewed_s_ago
    if age_s is not None and age_s <= MOST_LAG_S:
        return ""
    if not any(pod.ready for pod in life.pods) and life.wanted is not None:
        if not life.wanted:
            return "its Deployment is scaled to 0"
        words = next((f" ({pod.name}: {pod.words})" for pod in life.pods if pod.words), "")
        return f"none of its {life.wanted} pods is ready{words}"
    if age_s is None:
        return ""
    held = f", last by {life.holder}" if life.holder else ""
    return f"nobody has renewed its lease for {age_s:.0f} s{held}"


def _rights(cluster: ClusterFacts, survey: Survey, cure: Cure) -> Iterator[Finding]:
    missing = cluster.missing_rights
    if not missing:
        if cluster.rights_of:
            what = f"{cluster.rights_of} may do all that {survey.mode} needs"
            yield Finding(level="ok", where=cluster.name, what=what)
        return
    listed = ", ".join(str(right) for right in missing[:6])
    more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
    why = ", ".join(dict.fromkeys(right.why for right in missing if right.why))
    means = f"Needed {why}."
    if survey.as_self:
        means += " Use a kubeconfig that may; what is made for our service accounts helps none of "
        means += "these credentials, and would be a second hub beside `berth up`."
    elif not cluster.installed:
        means += " docs/operators/install.md has the steps. If it is `berth up` that works here, "
        means += "ask about its credentials: --self."
    else:
        means += " If it is `berth up` that works here, ask about its credentials: --self."
    change, undo = cure(missing) if not survey.as_self else ("", "")
    prefix = "" if cluster.installed or survey.as_self else "Berthmaster is not installed: "
    yield Finding(
        level="blocks",
        where=cluster.name,
        what=f"{prefix}{cluster.rights_of} may not: {listed}{more}",
        means=means,
        change=change,
        undo=undo,
    )
