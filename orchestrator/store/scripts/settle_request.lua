-- Stores the answer of a request with an idempotency key; without an answer, releases the key. Returns 0 if the claim has
-- ended. Drops the caller's oldest answers if all of its answers have more than `most_bytes` together.
local index, row = P .. 'once-of:' .. caller, P .. 'once:' .. name
if redis.call('HGET', row, 'claim') ~= claim then return 0 end
redis.call('ZREM', index, name .. ':0')
if not answer then
  redis.call('DEL', row)
  return 1
end
redis.call('HSET', row, 'answer', answer, 'until', now_ms + kept_ms)
redis.call('PEXPIRE', row, kept_ms)
redis.call('ZADD', index, now_ms + kept_ms, name .. ':' .. #answer)
redis.call('PEXPIRE', index, kept_ms)
redis.call('ZREMRANGEBYSCORE', index, '-inf', now_ms)
local members, sizes, total = redis.call('ZRANGE', index, 0, -1), {}, 0
for i, member in ipairs(members) do
  sizes[i] = tonumber(member:match('%d+$'))
  total = total + sizes[i]
end
for i, member in ipairs(members) do
  if total <= most_bytes then break end
  if sizes[i] > 0 then
    redis.call('DEL', P .. 'once:' .. member:match('^[^:]+'))
    redis.call('ZREM', index, member)
    total = total - sizes[i]
  end
end
return 1
