"""The generation task, which runs in a container on a contributor's machine (`python -m rollouts`)."""
