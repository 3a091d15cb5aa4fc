"""The independent auditor: reads only the bus and says whether every promise was kept.

May live here: the accounting of workloads and GPUs from the log and the facts.
Must not: code of the services whose work it checks, or any write to the bus.
"""
