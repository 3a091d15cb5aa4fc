"""Keep the accounts of the NATS servers equal to the folder of keys.

`berth tenant` and `berth cluster` push each change at once. This service repeats a change that a
server missed: because no server ran, or because a server lost its folder of accounts.
"""
