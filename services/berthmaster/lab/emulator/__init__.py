"""Worker clusters without hardware that send exactly the messages of real ones.

May live here: emulated nodes, GPUs, kubelets and executors, traces and generated load. Must not:
shortcuts that a real cluster does not have.
"""
