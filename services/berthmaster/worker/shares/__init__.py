"""A device plugin of the kubelet that hands out shares of one node's GPUs, with MPS behind it."""

import os

# gRPC reads these when it is imported. Children of ours exec at once and need nothing of it, and
# what it would write to stderr is no line of our log.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
