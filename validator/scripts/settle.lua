-- Ends a lease: the work is done, tried again later, or parked. Answers 1, or 0 if the lease was lost.
-- ARGV: id, token, what (done|retry|park), at (ms), attempts to add, code, why, hint
local P, id, what = KEYS[1], ARGV[1], ARGV[3]
local item = P .. 'item:' .. id
local now = redis.call('HMGET', item, 'token', 'state')
if now[1] ~= ARGV[2] or now[2] ~= 'leased' then return 0 end
redis.call('ZREM', P .. 'queue:leased', id)
if what == 'done' then
  redis.call('DEL', item)
  return 1
end
redis.call('HINCRBY', item, 'attempts', ARGV[5])
redis.call('HDEL', item, 'lost')  -- this holder lived to say what became of it
redis.call('HSET', item, 'code', ARGV[6], 'why', ARGV[7], 'hint', ARGV[8])
if what == 'retry' then
  redis.call('HSET', item, 'state', 'waiting')
  redis.call('ZADD', P .. 'queue:waiting', ARGV[4], id)
else
  redis.call('HSET', item, 'state', 'parked')
  redis.call('HDEL', item, 'staged', 'resolution')
  redis.call('ZADD', P .. 'queue:parked', ARGV[4], id)
end
return 1
