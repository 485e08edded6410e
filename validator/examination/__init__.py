"""Examination of a submission's file with its policy: all checks, then a conclusion. Knows no ledger and no queue."""
