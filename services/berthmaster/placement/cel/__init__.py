"""The Common Expression Language, as far as Placements use it, with a price for every step.

Why one of our own: whoever may make a Placement may write an expression, and a text of 200
characters can ask for hours or gigabytes. Go's implementation counts costs and stops; those that
can be had for Python do not (measured with the wrappers of the C++ and the Rust implementation in
November 2026: 700 MiB, and no end). Here each step, each element looked at and each piece of a
string costs; what is spent is spent, the same on every machine.

What is offered: all operators and macros of CEL; strings, lists, patterns (matched by RE2 in
linear time), times and durations, types; Open Cluster Management's ``scores`` and ``parseJSON``;
quantities and semantic versions of Kubernetes. Types are checked as cel-go's checker does, so that
an expression which OCM refuses is refused here. Whatever else OCM offers (``overloads``) is refused
by name when the expression is read, not when it is used.
"""
