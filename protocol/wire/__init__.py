"""Wire models, one module per conversation. Every field is bounded.

Models are strict about unknown fields: a field that a receiver does not know is refused in words instead of ignored,
because a misspelt limit is worse than a refused request. Times are Unix milliseconds, sizes bytes, durations seconds.
"""
