"""Everything that two parts of Muster must agree on.

Identities, signed requests, wire models, errors, settings, logs, and the HTTP server and client.
"""

__version__ = "0.1.0"
