"""The API of tenants and operators: submit, cancel, reprioritize, get, list and operator actions.

May live here: validation of requests, and answers once an event is stored. Must not: choose where a
job runs.
"""
