"""The one loop behind every service that keeps objects of an API server as they should be.

A service brings three things: what it watches (a tuple of ``Watched``), a pure core (``Core`` in
loop.py) and a writer with a method for each kind of write. The loop feeds the core from the watch,
lets it act while this replica may, carries its writes out, and brings each answer back.

::

    API server ──watch.py──▶ core.on_object      core.act(now) ──▶ write ──writer.py──▶ API server
                                  │                   ▲                        │
                              aside.py            loop.py ◀── core.on_answer ◀─┘ shell_contract.py

What a service has beside its watch (streams of the bus, in admission and multikueue) wakes the same
loop. Parts can be used one by one: the inventory has a watch and writes nothing.
"""
