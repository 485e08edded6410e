"""Report on a devnet run: its records, their computation, and its two forms, text and one HTML page."""
