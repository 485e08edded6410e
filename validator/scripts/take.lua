-- Leases the work whose deadline is next; answers {id, fields...} or nothing.
-- What a dead holder left comes back first, and counts as an attempt: it may be what killed the holder.
-- ARGV: now (ms), end of the lease (ms), token: random, so that none from before a loss of Redis equals it
local P, now = KEYS[1], ARGV[1]
local waiting, ready, leased = P .. 'queue:waiting', P .. 'queue:ready', P .. 'queue:leased'
local function make_ready(id)
  local deadline = redis.call('HGET', P .. 'item:' .. id, 'deadline')
  if not deadline then return end
  redis.call('HSET', P .. 'item:' .. id, 'state', 'ready')
  redis.call('ZADD', ready, deadline, id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, 64)) do
  redis.call('ZREM', leased, id)
  if redis.call('EXISTS', P .. 'item:' .. id) == 1 then
    redis.call('HINCRBY', P .. 'item:' .. id, 'attempts', 1)
    redis.call('HINCRBY', P .. 'item:' .. id, 'lost', 1)
  end
  make_ready(id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, 256)) do
  redis.call('ZREM', waiting, id)
  make_ready(id)
end
local id = redis.call('ZRANGE', ready, 0, 0)[1]
if not id then return {} end
redis.call('ZREM', ready, id)
redis.call('ZADD', leased, ARGV[2], id)
local item = P .. 'item:' .. id
redis.call('HSET', item, 'state', 'leased', 'token', ARGV[3])
return {id, unpack(redis.call('HGETALL', item))}
