"""What we know of Kueue: its kinds, a dispatcher's contract, its quota. Pure.

Five services read the same objects and must agree on what stands in them. What may live here is
true of Kueue itself, whoever asks; what one service makes of it (which cluster is best, what to
write, what to tell) stays with that service. Imports messages, the engine's words for GPU models
and the structs of kubernetes/, and never a service.
"""
