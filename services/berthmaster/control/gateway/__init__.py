"""The door for people and programs: submit, cancel, reprioritize, get, list, operators' orders.

May live here: checking what strangers send and answering them when it is durable.
Must not: choosing where a job runs, or another service.
"""
