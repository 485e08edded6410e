"""Wire models of requests and answers; one module per topic.

Every field is bounded. A service refuses unknown fields with an error: silently ignoring a misspelt limit would do more
harm. Times are Unix milliseconds, sizes bytes and durations seconds, unless the name of a field ends in another unit.
"""
