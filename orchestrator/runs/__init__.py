"""Services of a run: slot leasing, control, reported metrics, checkpoint relays."""
