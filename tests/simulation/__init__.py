"""All cores of the pipeline in one process, in virtual time, over a bus that misbehaves by a seed.

May live here: the simulated bus, short drivers that do for each core what its real shell does, the
faults, and the judge who looks at everything after every step. Must not: asyncio, real time, or any
chance that does not come from the seed: a seed that fails once fails for ever.
"""
