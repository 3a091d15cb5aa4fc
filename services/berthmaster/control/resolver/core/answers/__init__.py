"""Answers to users and operators: reasons of a placement, of a wait, a dry run, and what-if.

Code here reads the knowledge with the functions that decide. No decision and no other answer may
depend on this package.
"""
