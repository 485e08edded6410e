"""Report on a devnet run: recorder, computation, criteria, and its two forms, text and one HTML page."""
