"""Random pods, by all that a pod can ask accelerators with, as the API has them."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from berthmaster.lib.accelerators.table import TABLE

Document = dict[str, Any]

NAMES = (
    *(row.name for row in TABLE if row.end is None),
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/mig-huge",
    "nvidia.com/mig-1g.10gb.shared",
    "nvidia.com/turns",
    "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "example.com/gpu",
    "rdma/hca",
)
KAI = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")

AMOUNTS = st.dictionaries(
    st.sampled_from(NAMES),
    st.integers(0, 9).map(str) | st.sampled_from(["1k", "70", "2000000", "1500m", "9E"]),
    max_size=4,
)
RESOURCES = st.builds(
    lambda requests, limits: {"requests": requests, "limits": limits}, AMOUNTS, AMOUNTS
)
CONTAINERS = st.builds(lambda resources: {"resources": resources}, RESOURCES)
STARTING = st.builds(
    lambda resources, restarts: {"resources": resources} | restarts,
    RESOURCES,
    st.sampled_from([{}, {"restartPolicy": "Always"}]),
)
SPECS = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINERS, max_size=3)},
    optional={
        "initContainers": st.lists(STARTING, max_size=3),
        "resourceClaims": st.lists(
            st.sampled_from(
                [
                    {"name": "a", "resourceClaimTemplateName": "one-gpu"},
                    {"name": "b", "resourceClaimName": "nic"},
                    {"name": "c"},
                ]
            ),
            max_size=2,
        ),
        "overhead": AMOUNTS,
        "resources": RESOURCES,
    },
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(KAI), st.sampled_from(["0.5", "2", "1", "4000", "x", "-1", "nan"])
)


def asked_of(resources: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """A request counts, and a limit where there is none."""
    return {**resources.get("limits", {}), **resources.get("requests", {})}


def names_asked(spec: Mapping[str, Any]) -> set[str]:
    """All that the pod asks for some of, whatever it comes to."""
    each = [one["resources"] for one in spec["containers"]]
    each += [one["resources"] for one in spec.get("initContainers", ())]
    asked = [asked_of(one) for one in (*each, spec.get("resources", {}))]
    asked.append(spec.get("overhead", {}))
    of_pod = asked_of(spec.get("resources", {}))
    # What the pod asks for as a whole counts in place of its containers'.
    none = {name for name, amount in of_pod.items() if amount == "0"} - {
        name for name, amount in spec.get("overhead", {}).items() if amount != "0"
    }
    return {name for one in asked for name, amount in one.items() if amount != "0"} - none
