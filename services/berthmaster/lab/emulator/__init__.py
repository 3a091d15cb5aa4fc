"""Worker clusters that need no hardware and speak exactly the messages of real ones.

May live here: emulated nodes, GPUs, kubelets, executors, traces and generated load.
Must not: shortcuts that a real cluster would not have, or another service.
"""
