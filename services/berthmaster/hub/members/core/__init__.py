"""The decisions of the service. Pure: the caller passes the time and gets instructions."""
