"""Environment `reasoning-gym`: the datasets of the reasoning-gym library, made and scored in a sandbox."""
