"""Wire models, one module per conversation. Every field is bounded.

A field that the receiver does not know is refused with a message instead of ignored, because a misspelt limit is worse
than a refused request. Times are Unix milliseconds, sizes bytes, durations seconds.
"""
