"""The reconcile loop of every service that keeps objects of an API server in a wanted state.

A service supplies three parts: its watched kinds (a tuple of ``Watched``), a pure core (``Core`` in
loop.py), and a writer with a method for each kind of write. The loop feeds the core from the watch,
lets the core act while this replica may act, carries its writes out, and returns each answer.

::

    API server ──watch.py──▶ core.on_object      core.act(now) ──▶ write ──writer.py──▶ API server
                                  │                   ▲                        │
                              aside.py            loop.py ◀── core.on_answer ◀─┘ shell_contract.py

Other inputs of a service, such as streams of the bus in admission and multikueue, wake the same
loop. The parts also work alone: the inventory has a watch and writes nothing.
"""
