-- Claims an idempotency key for a request, unless another request with this key is being served or was answered.
local index, row = P .. 'once', P .. 'once:' .. name
redis.call('ZREMRANGEBYSCORE', index, '-inf', now_ms)
local f = redis.call('HMGET', row, 'until', 'request', 'answer')
if f[1] and tonumber(f[1]) > now_ms then
  local outcome = f[2] ~= fingerprint and 'other-request' or f[3] and 'answered' or 'in-progress'
  return reply{outcome = outcome, answer = f[3] or ''}
end
if redis.call('ZCARD', index) >= most then
  local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  return reply{outcome = 'too-many', wait_ms = tonumber(first[2]) - now_ms}
end
redis.call('DEL', row)
redis.call('HSET', row, 'claim', claim, 'request', fingerprint, 'until', now_ms + life_ms)
redis.call('PEXPIRE', row, life_ms)
redis.call('ZADD', index, now_ms + life_ms, name)
return reply{outcome = 'claimed'}
