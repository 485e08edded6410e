"""Examination of a rollout file with its policy: all checks, then a conclusion.

An examination needs no ledger and no queue.
"""
