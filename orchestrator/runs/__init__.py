"""Services of a run: leasing of slots, control by trainer and owner, reported metrics, checkpoint relays."""
