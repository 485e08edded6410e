"""Requests to the orchestrator: the run's lease, the demand, and retries during outages."""
