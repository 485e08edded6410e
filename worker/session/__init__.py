"""The worker's session with its orchestrator: signed requests and the orchestrator's time."""
