"""The validator: reads submissions from the ledger, checks their files, and sends verdicts with evidence."""
