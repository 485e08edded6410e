"""Shell completion from an index of all commands in the user's cache, because importing the commands takes seconds."""
