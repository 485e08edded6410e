"""Task output: capture, local storage, and push to the orchestrator."""
