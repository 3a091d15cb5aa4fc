"""What messages of several families are made of."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Name = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)", min_length=1, max_length=63)
]
LabelText = Annotated[str, Meta(max_length=316)]


class Toleration(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Lets pods onto nodes and clusters with a matching taint; an empty key matches every taint."""

    key: LabelText = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelText = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""  # "" = every effect
