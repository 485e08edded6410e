"""Examination of a rollout file with its policy: all checks, then a conclusion.

An examination needs no ledger and no queue. `rollouts/checks/__init__.py` lists the checks with their numbers: 2 needs
only the bytes, 3 to 6 the decoded file, 8 to 10 a prefill, and 7 the scoring of all rows, which comes last.
"""
