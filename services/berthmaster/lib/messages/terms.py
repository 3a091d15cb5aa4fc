"""Types shared by several families of messages."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Name = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)", min_length=1, max_length=63)
]
LabelText = Annotated[str, Meta(max_length=316)]

# Bounds of what agents of worker clusters report. Each leaves room beyond what any machine has, and
# keeps sums over a fleet below 2**63, since readers add the numbers up in arrays.
Number = Annotated[int, Meta(ge=0, le=1 << 62)]  # an epoch or a counter
Moment = Annotated[float, Meta(ge=0, le=1e11)]  # seconds since 1970
Interval = Annotated[float, Meta(ge=0, le=86_400)]  # seconds between two messages
Amount = Annotated[int, Meta(ge=0, le=1 << 46)]  # of a node, a job or a cluster: MiB, milli, pieces
Index = Annotated[int, Meta(ge=0, le=1 << 20)]  # number of a device on its node
Attempt = Annotated[int, Meta(ge=0, le=1 << 31)]
Text = Annotated[str, Meta(max_length=32_768)]  # words for people, as of a Kubernetes condition
LabelKey = Annotated[str, Meta(max_length=317)]  # also a resource's name
ObjectName = Annotated[str, Meta(max_length=512)]  # a Kubernetes name is at most 253
ModelName = Annotated[str, Meta(max_length=128, pattern=r"^[-A-Za-z0-9 ._+/:()@=,#]*$(?!\n)")]


class Toleration(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Permission for pods to use nodes and clusters with a matching taint."""

    key: LabelText = ""  # key of the taint; "" with Exists = every taint
    operator: Literal["Equal", "Exists"] = "Equal"
    # operator: Equal compares the value; Exists ignores the value
    value: LabelText = ""  # value of the taint
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    # effect: effect of the taint; "" = every effect
