"""`berth serve clearing`: the admission webhook that clears nominations before Kubernetes 1.36.

::

    berth serve clearing --certificate-dir /etc/berth-clearing --http-host 0.0.0.0

The API server asks at each write that ends a nomination (deploy/chart/templates/clearing.yaml). The
service has no rights, no bus and no state: replicas answer side by side.
"""

from typing import Final

from berthmaster.hub.clearing.core.review import Reply
from berthmaster.hub.clearing.server import PATH, Certificate, ReviewServer
from berthmaster.hub.clearing.settings import ClearingSettings
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "clearing"
READ_AGAIN_S: Final = 10.0  # seconds between two checks of the certificate


async def main(ctx: Context[ClearingSettings]) -> None:
    """Answer reviews until the service stops. Raises CannotStart."""
    settings = ctx.settings
    reviews = ctx.metrics.counter("reviews", "AdmissionReviews by result", ["result"])
    took = ctx.metrics.histogram("review_seconds", "Time to answer an AdmissionReview in seconds")

    def done(reply: Reply, seconds: float) -> None:
        reviews.labels(reply.result).inc()
        took.observe(seconds)
        if reply.why:
            ctx.log.warning("review not answered", result=reply.result, why=reply.why)

    certificate = Certificate(settings.certificate_dir)
    told = ""
    server = ReviewServer(settings.http_host, settings.port, certificate, ctx.log, done)
    try:
        ctx.log.info("webhook started", port=server.port, path=PATH)
        async for _ in beats(READ_AGAIN_S, ctx.stopping):
            trouble = certificate.read(ctx.now())
            ctx.health.ready("certificate", not trouble, trouble)
            if trouble and trouble != told:
                ctx.log.error("certificate not usable", why=trouble)
            told = trouble
    finally:
        server.close()


SERVICE: Final = Service(NAME, ClearingSettings, main)
