-- Stores a token; replies false if the name or the id is taken.
if redis.call('HEXISTS', P .. 'token-names', name) == 1 or redis.call('EXISTS', P .. 'token:' .. id) == 1 then return 0 end
redis.call('HSET', P .. 'token-names', name, id)
redis.call('HSET', P .. 'token:' .. id, 'name', name, 'role', role, 'hash', hash, 'created', now_ms, 'expires', expires_ms,
  'per_minute', per_minute, 'concurrent', concurrent, 'per_day', per_day, 'revoked', 0)
return 1
