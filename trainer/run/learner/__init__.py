"""The learner of a run: its thread, its mesh and the streaming of gradients."""
