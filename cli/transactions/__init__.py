"""Commands that change something: confirmation, dry run, and sending of transactions."""
