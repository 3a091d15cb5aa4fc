"""Worker clusters without hardware that send exactly the messages of real ones.

Belongs here: emulated nodes, GPUs, kubelets and executors, traces and generated load. Not here:
shortcuts that a real cluster lacks.
"""
