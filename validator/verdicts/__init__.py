"""Parts of a verdict: the rows drawn for recomputation and the audit file."""
