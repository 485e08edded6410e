-- Ends a lease: the work is done, given back untried, or parked. Answers 1, or 0 if the lease was lost.
-- ARGV: id, token, what (done|back|park), code, why, hint
local P, id, what = KEYS[1], ARGV[1], ARGV[3]
local item = P .. 'item:' .. id
local held = redis.call('HMGET', item, 'token', 'state')
if held[1] ~= ARGV[2] or held[2] ~= 'leased' then return 0 end
redis.call('ZREM', P .. 'queue:leased', id)
if what == 'done' then
  redis.call('DEL', item)
  return 1
end
redis.call('HDEL', item, 'lost')  -- this holder lived to say what became of it
if what == 'back' then
  redis.call('HSET', item, 'state', 'waiting')
  redis.call('ZADD', P .. 'queue:waiting', clock(), id)
else
  redis.call('HINCRBY', item, 'attempts', 1)
  redis.call('HSET', item, 'state', 'parked', 'code', ARGV[4], 'why', ARGV[5], 'hint', ARGV[6])
  redis.call('HDEL', item, 'staged', 'resolution')
  redis.call('ZADD', P .. 'queue:parked', clock(), id)
end
return 1
