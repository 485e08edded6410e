"""The task that generates: what runs in a container on a contributor's machine (`python -m rollouts`)."""
