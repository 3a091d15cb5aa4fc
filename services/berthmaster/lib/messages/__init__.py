"""Structs of all messages on the bus, by family, without code that acts on a message.

This package may hold msgspec structs, their unions, decoders, limits of client requests, and the
errors of malformed requests. Imports of other packages, I/O and clocks belong elsewhere. Schemas
for other languages are generated from here, so a published field never changes its type, and a new
field has a default.

Structs that services keep by the hundred thousand (fleet, workload, placement) have ``gc=False``:
without cycles, the garbage collector need not visit these structs.
"""
