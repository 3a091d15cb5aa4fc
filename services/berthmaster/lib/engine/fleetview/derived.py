"""What follows from the facts and is kept for speed: never told, never stored, made anew at will.

Nothing here decides anything by itself: a view that is folded anew comes to the same decisions.
"""

from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import Suitables
from berthmaster.lib.engine.queueing.ledger import Ledger
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.score_cache import ScoreCache
from berthmaster.lib.engine.scoring.value import Appraiser


class FleetDerived:
    """Tables and caches over the fleet, and two counters by which others know that theirs are old.

    The fleet's arrays stand in ``Fleet`` itself, with the reports that they are made of.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.table = ClusterTable()
        self.ledger = Ledger(fleet.node)  # what clusters have, and queues' accounts of it
        self.suitables = Suitables()
        self.scores = ScoreCache()
        self.appraiser = Appraiser()
        self.growth = 0  # rises when something may fit now that did not before
        self.changes = 0  # rises with what nodes tell and with every event of a live placement
