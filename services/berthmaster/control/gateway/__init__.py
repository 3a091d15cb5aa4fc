"""The API of tenants and operators: submit, cancel, reprioritize, get, list and operator actions.

This package validates requests and answers once an event is stored. Choosing where a job runs
belongs to the resolver.
"""
