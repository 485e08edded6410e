"""Wire models, one module per conversation. Every field is bounded.

A service refuses unknown fields with a message, because silently ignoring a misspelt limit does more harm than refusing
the request. Times are Unix milliseconds, sizes bytes, durations seconds.
"""
