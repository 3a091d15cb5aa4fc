"""What `scripts/mutate` runs: small changes to pure modules, and whether a test notices each.

Tests show what they prove only when the code is wrong. So a seeded sample of small changes is drawn
(mutants.py) from the modules that import-linter's contract `pure` holds (scope.py), and for each of
them the tests of its package run that execute the changed place, then some seeds of the simulation
(worker.py). A mutant that no test notices is either equivalent to what stands or a missing test.

The tools that exist change files in place (cosmic-ray) or copy the project and run each mutant in
processes of its own (mutmut). Here no file is changed. Every mutant of the sample is compiled into
its module behind a switch, tests are collected once a package, and a mutant costs one fork.
"""
