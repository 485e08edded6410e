"""Report on a devnet run: the record of the run, the computation of the report, and its output as text and HTML."""
