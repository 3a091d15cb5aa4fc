"""Move the events of ended workloads to the archive, and leave a tombstone that keeps the id used.

This package decides when an event history is old enough, and the order of copying and removal. This
package never appends to the event history of a workload.
"""
