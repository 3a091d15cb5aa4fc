"""`berth serve credentials`: gives a hub's MultiKueue access to its workers, and takes it back.

::

    berth serve credentials                                    in a pod of the hub
    berth serve credentials --kubeconfig F --context C --namespace berth-system

For each ClusterProfile and ManagedCluster that the selector takes: a Secret ``multikueue-CLUSTER``
in Kueue's namespace and a MultiKueueCluster. It needs no bus: nothing that it knows may travel over
one. Replicas stand by on a Lease. Rights: deploy/kubernetes/credentials.
"""

from berthmaster.credentials.settings import CredentialsSettings
from berthmaster.credentials.shell import Shell
from berthmaster.kubernetes.joining import reached
from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.service import Context, Service

NAME = "credentials"


async def main(ctx: Context[CredentialsSettings]) -> None:
    """Mirror the hub, and act while the lease is ours."""
    settings = ctx.settings
    if settings.renew_after_s and settings.renew_after_s <= settings.grace_s:
        raise CannotStart(
            f"--renew-after-s {settings.renew_after_s:g} must be more than --grace-s "
            f"{settings.grace_s:g}: else tokens that were replaced are never revoked"
        )
    async with reached(ctx, NAME) as client:
        shell = Shell(ctx, client)
        await shell.run()


SERVICE = Service(NAME, CredentialsSettings, main)
