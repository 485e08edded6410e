"""Collects data about a devnet run, during it and at its end, and builds the report."""
