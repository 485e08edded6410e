"""Report on a devnet run: record of the run, computation of the report, and its output."""
