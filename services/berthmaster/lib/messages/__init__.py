"""Every struct that travels on the bus, by family, and nothing that acts on one.

May live here: msgspec structs, their unions, decoders, limits of what clients may send, and the
errors of a malformed request. Must not: imports of other packages, I/O, clocks. Schemas for other
languages are generated from here, so a published field never changes its type and a new one has a
default.

Structs that services keep by the hundred thousand (fleet, workload, placement) have ``gc=False``:
they have no cycles, so the garbage collector need not visit them.
"""
