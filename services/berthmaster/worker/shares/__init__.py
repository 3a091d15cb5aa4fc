"""A device plugin of the kubelet for shares of one node's GPUs, enforced by MPS."""

import os

# gRPC reads these at import. Child processes exec at once, and gRPC's stderr is no log of the
# service.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
