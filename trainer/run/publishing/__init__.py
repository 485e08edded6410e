"""Publication of versions: folder, ledger and orchestrator."""
