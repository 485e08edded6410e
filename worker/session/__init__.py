"""The worker's session with its orchestrator: heartbeats, requests and server time."""
