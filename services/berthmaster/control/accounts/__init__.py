"""Holds the servers to the accounts that the folder of keys says there are.

Whoever adds or removes a tenant or a cluster tells the servers at once (`berth tenant`, `berth
cluster`). This service sees to what that missed: a server that lost its folder of accounts, or a
change that was made while no server ran.
"""
