"""Delivery of rollout files: durable queue, upload, submission and payment watch."""
