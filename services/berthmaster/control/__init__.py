"""Services that run beside NATS. They share ``lib`` and import no other service."""
