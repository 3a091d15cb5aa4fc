"""One Placement over 1,000 clusters: from a changed score to the pages that should be, in CPU time.

The pure part only, as the service runs it: read the change, filter, score, rank, divide into pages
and compare with what is written. Once with labels, taints and four prioritizers, once with an
expression on top that looks at the scores of every cluster. CPU time, so that a busy machine
measures the same. Expressions are evaluated in this process; beside that stand the time of the
first look, which evaluates them for all clusters, and of one question to the process that the
service asks.
"""

import asyncio
import statistics
import time
from typing import Any, Final

import msgspec

from berthmaster.hub.placement.cel.client import CelWorker
from berthmaster.hub.placement.cel.language import Language
from berthmaster.hub.placement.cel.question import ClusterInput, Question
from berthmaster.hub.placement.core.evaluator import Evaluator
from berthmaster.hub.placement.core.instructions import Instruction, WriteDecisions
from berthmaster.hub.placement.core.objects import (
    CLUSTER_SET_LABEL,
    DISABLED,
    AddOnPlacementScore,
    CandidateCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Placement,
)
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome

CLUSTERS: Final = 1000
LOOKS: Final = 100
NOW_S: Final = 1_900_000_000.0
KEY: Final = ("bench", "p")
EXPRESSION: Final = (
    "managedCluster.scores('gpus').exists(s, s.name == 'free' && s.value > -90) && "
    "managedCluster.metadata.labels['tier'].matches('^(gold|silver)$')"
)


def _clusters() -> list[dict[str, Any]]:
    return [
        {
            "metadata": {
                "name": f"cluster-{n:04}",
                "labels": {CLUSTER_SET_LABEL: "all", "tier": ("gold", "silver", "tin")[n % 3]},
            },
            "spec": {"taints": [{"key": "gone", "effect": "NoSelect"}] if n % 50 == 0 else []},
            "status": {
                "capacity": {"cpu": f"{n}", "memory": f"{n}Gi"},
                "allocatable": {"cpu": f"{n}", "memory": f"{n}Gi"},
                "clusterClaims": [{"name": "region", "value": f"r{n % 7}"}],
            },
        }
        for n in range(CLUSTERS)
    ]


def _score(n: int, value: int) -> AddOnPlacementScore:
    found = {
        "metadata": {"name": "gpus", "namespace": f"cluster-{n:04}", "resourceVersion": str(value)},
        "status": {"scores": [{"name": "free", "value": value}, {"name": "calm", "value": 3}]},
    }
    return msgspec.convert(found, AddOnPlacementScore)


def _placement(expressions: list[str]) -> Placement:
    selector: dict[str, Any] = {
        "labelSelector": {
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]
        },
        "celSelector": {"celExpressions": expressions},
    }
    addon = {"type": "AddOn", "addOn": {"resourceName": "gpus", "scoreName": "free"}}
    weights = [
        {"scoreCoordinate": {"type": "BuiltIn", "builtIn": "ResourceAllocatableCPU"}, "weight": 1},
        {"scoreCoordinate": addon, "weight": 3},
    ]
    return msgspec.convert(
        {
            "metadata": {
                "name": KEY[1],
                "namespace": KEY[0],
                "uid": "1",
                "annotations": {DISABLED: "true"},
            },
            "spec": {
                "numberOfClusters": 300,
                "predicates": [{"requiredClusterSelector": selector}],
                "prioritizerPolicy": {"mode": "Additive", "configurations": weights},
            },
        },
        Placement,
    )


def _look(core: Evaluator, language: Language, now_s: float) -> list[Instruction]:
    instructions = core.evaluate(KEY, now_s)
    while (pending := core.pending(KEY)) is not None:
        core.settle(KEY, pending, language.answer(pending.question), now_s)
        instructions += core.evaluate(KEY, now_s)
    return instructions


def _looks_ms(expressions: list[str]) -> tuple[float, list[float]]:
    """(the first look, those after one changed score, sorted)."""
    core, language = Evaluator(), Language()
    core.on_object(msgspec.convert({"metadata": {"name": "all"}}, ManagedClusterSet), gone=False)
    bound = {"metadata": {"name": "all", "namespace": KEY[0]}}
    core.on_object(msgspec.convert(bound, ManagedClusterSetBinding), gone=False)
    for found in _clusters():
        core.on_object(msgspec.convert(found, CandidateCluster), gone=False)
    for n in range(CLUSTERS):
        core.on_object(_score(n, n % 200 - 100), gone=False)
    core.on_object(_placement(expressions), gone=False)
    core.complete = True
    began_s = time.thread_time()
    _look(core, language, NOW_S)
    first_ms = (time.thread_time() - began_s) * 1000
    took_ms: list[float] = []
    for look in range(LOOKS):
        began_s = time.thread_time()
        core.on_object(_score(look * 7 % CLUSTERS, look % 100), gone=False)
        assert core.outcome(KEY) is not None
        asked = _look(core, language, NOW_S + look)
        took_ms.append((time.thread_time() - began_s) * 1000)
        (write,) = [one for one in asked if isinstance(one, WriteDecisions)]
        measured = Answer(Outcome.DENIED, "Measured", "measured, not written")
        core.on_answer(write, measured, NOW_S + look)
    return first_ms, sorted(took_ms)


async def _questions_ms() -> list[float]:
    """Of questions about one cluster, sorted, by the clock."""
    document = msgspec.convert(_clusters()[0], CandidateCluster).document
    cluster = ClusterInput(document, {"gpus": [("free", 1)]}, [0])
    question = Question((EXPRESSION,), ((0,),), [cluster])
    worker = CelWorker()
    took_ms: list[float] = []
    try:
        await worker.ask(question)
        for _ in range(LOOKS):
            began_s = time.perf_counter()
            await worker.ask(question)
            took_ms.append((time.perf_counter() - began_s) * 1000)
    finally:
        await worker.close()
    return sorted(took_ms)


def measure() -> dict[str, float]:
    """How long a look takes."""
    (_, plain), (first_ms, with_cel) = _looks_ms([]), _looks_ms([EXPRESSION])
    return {
        "placement_1000_clusters_p50_cpu_ms": statistics.median(plain),
        "placement_1000_clusters_p99_cpu_ms": plain[int(0.99 * LOOKS) - 1],
        "placement_1000_clusters_expression_first_cpu_ms": first_ms,
        "placement_1000_clusters_expression_p50_cpu_ms": statistics.median(with_cel),
        "placement_1000_clusters_expression_p99_cpu_ms": with_cel[int(0.99 * LOOKS) - 1],
        "placement_expression_question_p50_ms": statistics.median(asyncio.run(_questions_ms())),
    }
