"""What scripts/test is made of: tiers, steps, reports, what is kept from run to run, the summary.

Standard library only: it must be able to say that everything else is broken.
"""
