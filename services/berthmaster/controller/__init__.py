"""The one loop behind every service that keeps objects of an API server as they should be.

A service brings three things: what it watches (a tuple of ``Watched``), a pure core (``Core`` in
loop.py) and a writer with a method for each kind of write. The loop feeds the core from the watch,
lets it act while this replica may, carries its writes out, and brings each answer back.

::

    API server ──watch.py──▶ core.on_object      core.act(now) ──▶ write ──writer.py──▶ API server
                                  │                   ▲                        │
                              aside.py            loop.py ◀── core.on_answer ◀─┘ answer.py

Parts can be used one by one: multikueue has streams of the bus beside its watch, and a loop of its
own over the same watch, writer, answers and events.
"""
