"""Examination of a rollout file with its policy: all checks, then a conclusion.

An examination reads neither the ledger nor the queue. `rollouts/checks/__init__.py` lists the checks with their
numbers: check 2 needs only the bytes, checks 3 to 6 need the decoded file, checks 8 to 10 a prefill, and check 7 the
scoring of all rows, which comes last.
"""
