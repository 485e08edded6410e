"""A submission's file, held against its policy: every check, then a conclusion. No ledger and no queue in here."""
