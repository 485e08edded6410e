"""What a devnet's run leaves behind, gathered while it runs and when it ends, and the report that is made of it."""
