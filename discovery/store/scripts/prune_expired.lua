-- Deletes expired records.
return prune(now_ms, limit)
