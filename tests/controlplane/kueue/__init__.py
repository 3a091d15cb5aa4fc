"""A Kueue to test against: the real manager, or a stand-in that follows its contract, behind one
interface.

``setup.kueue(...)`` gives either: the real one when KUEUE_BIN and KUEUE_CRDS are set, otherwise the
stand-in. The tests never ask which. Both talk to real API servers only; the CRDs of the stand-in
are in ``crds/``.
"""
