"""Configuration of commands: the tables of muster.toml that they read, and `muster config` and `muster settings`."""
