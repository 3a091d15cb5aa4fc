"""Names of the streams. Apart from what they are (streams.py), so that who only names one needs no
connection to be imported.
"""

from typing import Final

WORKLOADS: Final = "WORKLOADS"
FLEET: Final = "FLEET"
FLEET_LOG: Final = "FLEET_LOG"
CONTROL: Final = "CONTROL"
ARCHIVE: Final = "ARCHIVE"
DEAD: Final = "DEAD"
LOG_ENDS: Final = "LOG_ENDS"
LEASES: Final = "LEASES"
SNAPSHOTS: Final = "OBJ_SNAPSHOTS"  # the stream behind the object store bucket SNAPSHOTS
