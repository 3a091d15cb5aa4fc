"""Names of what we make, from names of clusters, which may be longer than a name or label allows.

Pure. A name that fits stays as it is; a longer one is cut and ends in a digest of the whole, so
that two long names which begin alike stay two. Kubernetes' limits: 253 characters for most names,
63 for values of labels.
"""

import hashlib
from typing import Final

MAX_NAME: Final = 253
MAX_LABEL: Final = 63
MAX_ACCOUNT: Final = 63  # short: bound Secrets add their serial to it
DIGEST: Final = 10  # hexadecimal: a trillion
HUB_SECRET: Final = "multikueue-"

OURS: Final = "berthmaster.io/credentials"  # label of all that is ours, on both sides: the cluster
HUB: Final = "berthmaster.io/hub"  # label on a worker: whose
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berthmaster-credentials"
SIBLING: Final = "berthmaster-admission"  # registers clusters whose Secret it finds, too
BOOTSTRAP: Final = "berthmaster.io/bootstrap"  # label of Secrets that people make
CLUSTER: Final = "berthmaster.io/cluster"  # annotation: the cluster's whole name

TARGET: Final = "berthmaster.io/target"  # annotations of the Secret that Kueue reads
TOLD: Final = "berthmaster.io/told"
SERIAL: Final = "berthmaster.io/serial"
ISSUED: Final = "berthmaster.io/issued-at"
EXPIRES: Final = "berthmaster.io/expires-at"


def digest(*parts: str) -> str:
    """A short fingerprint of texts in their order."""
    data = "\0".join(parts).encode()
    return hashlib.sha256(data).hexdigest()[:DIGEST]


def cut(text: str, most: int) -> str:
    """The text, or its beginning and a digest of it, in at most so many characters."""
    if len(text) <= most:
        return text
    return f"{text[: most - DIGEST - 1].rstrip('-._')}-{digest(text)}"


def label(cluster: str) -> str:
    return cut(cluster, MAX_LABEL)


def hub_secret(cluster: str) -> str:
    """The Secret that Kueue reads, in Kueue's namespace."""
    return cut(f"{HUB_SECRET}{cluster}", MAX_NAME)


def account(hub: str, cluster: str) -> str:
    """Service account, ClusterRole and binding on the worker: two hubs, or two names of one
    cluster, never share one."""
    begin = cut(cluster, MAX_ACCOUNT - len(HUB_SECRET) - DIGEST - 1)
    return f"{HUB_SECRET}{begin}-{digest(hub, cluster)}"


def bootstrap(hub: str, cluster: str) -> str:
    """Account and roles on the worker by which we get in there."""
    return f"berth-bootstrap-{digest(hub, cluster)}"


def bound(account: str, serial: str) -> str:
    """The Secret on the worker that one token is bound to."""
    return f"{account}-{serial}"


def serial(now_s: float) -> str:
    """A new token's number, which later ones sort behind."""
    return f"{round(now_s * 1000):012x}"
