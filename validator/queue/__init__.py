"""The work queue: items, leases, retry policy and error classes."""
