"""What tasks run in: one small interface, and its two forms, Docker and a sandboxed process."""
