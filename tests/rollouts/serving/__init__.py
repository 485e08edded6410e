"""Tests of the OpenAI-compatible service."""
