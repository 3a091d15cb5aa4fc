"""Which taints keep pods away."""

from berthmaster.lib.messages.fleet import Taint
from berthmaster.lib.messages.workload import Toleration


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Kubernetes' rule; PreferNoSchedule keeps nobody away."""
    if taint.effect == "PreferNoSchedule":
        return True
    return any(
        (not t.effect or t.effect == taint.effect)
        and (t.key == taint.key or (not t.key and t.operator == "Exists"))
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )
