"""`berth audit`: the independent auditor. It reads only the bus and checks every promise.

Belongs here: the accounting of workloads and GPUs from log and facts. Not here: code of the audited
services, or writes to the bus.
"""
