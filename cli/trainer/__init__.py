"""`muster trainer`: warm-up, training runs and evaluation."""
