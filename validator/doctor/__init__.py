"""`muster validator doctor`: checks what a validator needs, and measures how many files this machine examines."""
