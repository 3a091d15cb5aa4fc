"""The vocabulary: every struct that travels on the bus, by family, and nothing that acts on it.

May live here: msgspec structs, their unions, decoders, bounds on what people may send, and what is
said of a request that is wrong.
Must not: anything of ours from elsewhere, I/O, clocks. Other languages read what is generated
from here, so a field once published is never re-typed, and a new one has a default.

What services keep by the hundred thousand (fleet, workload, placement) is made with ``gc=False``: a
message has no cycle, so the collector that looks for them need not walk through it again and again.
"""
