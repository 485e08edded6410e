"""`muster worker doctor`: everything that joining needs, looked at before it is needed."""
