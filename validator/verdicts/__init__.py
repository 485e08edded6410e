"""Preparation of verdicts: the draw of the rows to recompute, and the audit file."""
