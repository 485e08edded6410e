"""Sessions of workers: slots whose tasks answer requests."""
