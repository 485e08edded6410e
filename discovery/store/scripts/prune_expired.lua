-- Deletes up to `limit` expired records with their invites.
return prune(now_ms, limit)
