"""Report on a finished devnet run: its data model, its judgement, and its two forms, text and one HTML page."""
