"""The contract between the parts: identities, signed requests, wire models, errors, settings, logs, services."""

__version__ = "0.1.0"
