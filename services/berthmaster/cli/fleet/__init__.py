"""Clusters and nodes: `berth gpus`, `cordon`, `uncordon`, `drain`, `lost`."""
