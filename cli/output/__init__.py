"""Output of commands: results as text, tables and JSON, progress, and documents in files."""
