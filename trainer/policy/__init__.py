"""The policy under training: its base model and the trainer that updates it."""
