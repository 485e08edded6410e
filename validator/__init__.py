"""The validator: takes every submission from the ledger, checks it, and writes a verdict with evidence."""
