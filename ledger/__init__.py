"""The money of Muster: contracts, their typed client, event cursors and the chains to run them on."""
