"""The ledger: contracts, their typed client, event cursors, and development chains to run them on."""
