"""Names of Berthmaster's objects, derived from cluster names of any length. Pure.

A name that fits stays unchanged. A longer name is cut and ends in a digest of the whole, so that
two long names with the same beginning stay different. Kubernetes' limits: 253 characters for most
names, 63 for label values.
"""

import hashlib
from typing import Final

MAX_NAME: Final = 253
MAX_LABEL: Final = 63
MAX_ACCOUNT: Final = 63  # short, because bound Secrets append their serial
DIGEST: Final = 10  # hexadecimal digits: a trillion values
HUB_SECRET: Final = "multikueue-"

# label of all of Berthmaster's objects, on both sides: the cluster
OURS: Final = "berthmaster.io/credentials"
HUB: Final = "berthmaster.io/hub"  # label on a worker's objects: the hub
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berthmaster-credentials"
SIBLING: Final = "berthmaster-admission"  # registers clusters whose Secret exists, too
BOOTSTRAP: Final = "berthmaster.io/bootstrap"  # label of Secrets by operators
CLUSTER: Final = "berthmaster.io/cluster"  # annotation: the cluster's whole name

TARGET: Final = "berthmaster.io/target"  # annotations of the Secret that Kueue reads
TOLD: Final = "berthmaster.io/told"
SERIAL: Final = "berthmaster.io/serial"
ISSUED: Final = "berthmaster.io/issued-at"
EXPIRES: Final = "berthmaster.io/expires-at"


def digest(*parts: str) -> str:
    """Return a short digest of texts in their order."""
    data = "\0".join(parts).encode()
    return hashlib.sha256(data).hexdigest()[:DIGEST]


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning and a digest, in at most ``most`` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most - DIGEST - 1].rstrip('-._')}-{digest(text)}"


def label(cluster: str) -> str:
    return cut(cluster, MAX_LABEL)


def hub_secret(cluster: str) -> str:
    """Return the name of the Secret that Kueue reads, in Kueue's namespace."""
    return cut(f"{HUB_SECRET}{cluster}", MAX_NAME)


def account(hub: str, cluster: str) -> str:
    """Return the name of service account, ClusterRole and binding on the worker.

    Two hubs, or two names of one cluster, never share a name.
    """
    begin = cut(cluster, MAX_ACCOUNT - len(HUB_SECRET) - DIGEST - 1)
    return f"{HUB_SECRET}{begin}-{digest(hub, cluster)}"


def bootstrap(hub: str, cluster: str) -> str:
    """Return the name of the bootstrap account and its roles on the worker."""
    return f"berth-bootstrap-{digest(hub, cluster)}"


def bound(account: str, serial: str) -> str:
    """Return the name of the Secret on the worker to which one token is bound."""
    return f"{account}-{serial}"


def serial(now_s: float) -> str:
    """Return the serial of a new token. Later serials sort after it."""
    return f"{round(now_s * 1000):012x}"
