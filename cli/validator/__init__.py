"""`muster validator`: commands for validator operators."""
