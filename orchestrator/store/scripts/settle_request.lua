-- Stores the answer of a request with an idempotency key; without an answer, releases the key. Returns 0 if the claim has
-- ended.
local index, row = P .. 'once', P .. 'once:' .. name
if redis.call('HGET', row, 'claim') ~= claim then return 0 end
if answer then
  redis.call('HSET', row, 'answer', answer, 'until', now_ms + kept_ms)
  redis.call('PEXPIRE', row, kept_ms)
  redis.call('ZADD', index, now_ms + kept_ms, name)
else
  redis.call('DEL', row)
  redis.call('ZREM', index, name)
end
return 1
