-- Claims an idempotency key for a request, unless another request with this key is being served or was answered.
-- The caller's index has a member `NAME:BYTES` for each of its rows, by the time at which the row ends. Requests in
-- progress have 0 bytes, and stored answers more.
local index, row = P .. 'once-of:' .. caller, P .. 'once:' .. name
redis.call('ZREMRANGEBYSCORE', index, '-inf', now_ms)
local f = redis.call('HMGET', row, 'until', 'request', 'answer')
if f[1] and tonumber(f[1]) > now_ms then
  local outcome = f[2] ~= fingerprint and 'other-request' or f[3] and 'answered' or 'in-progress'
  return reply{outcome = outcome, answer = f[3] or ''}
end
if redis.call('ZCARD', index) >= most then
  local oldest
  for _, member in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    if member:sub(-2) ~= ':0' then oldest = member break end
  end
  if not oldest then return reply{outcome = 'too-many'} end
  redis.call('DEL', P .. 'once:' .. oldest:match('^[^:]+'))
  redis.call('ZREM', index, oldest)
end
redis.call('DEL', row)
redis.call('HSET', row, 'claim', claim, 'request', fingerprint, 'until', now_ms + life_ms)
redis.call('PEXPIRE', row, life_ms)
redis.call('ZADD', index, now_ms + life_ms, name .. ':0')
if redis.call('PTTL', index) < life_ms then redis.call('PEXPIRE', index, life_ms) end
return reply{outcome = 'claimed'}
