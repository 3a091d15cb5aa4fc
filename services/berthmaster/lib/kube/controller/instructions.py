"""What every core may ask for beside its own writes. Pure."""

from typing import NamedTuple

from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kube.resources import Resource


class KubeEvent(NamedTuple):
    """An Event on an object, for those who use kubectl. It has no answer."""

    resource: Resource
    metadata: Metadata
    warning: bool
    reason: str  # one word in CamelCase
    note: str
