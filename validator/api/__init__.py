"""The validator's REST API and its response models."""
