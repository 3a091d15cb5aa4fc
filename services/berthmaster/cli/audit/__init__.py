"""`berth audit`: the independent auditor. It reads only the bus and checks every promise.

May live here: the accounting of workloads and GPUs from log and facts. Must not: use code of the
services that it checks, or write to the bus.
"""
