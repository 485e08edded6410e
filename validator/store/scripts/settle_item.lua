-- Ends a lease: deletes the item, returns it to the queue without counting an attempt, or parks it. Returns 0 if the
-- lease was lost.
local item = P .. 'item:' .. id
local held = redis.call('HMGET', item, 'token', 'state')
if held[1] ~= token or held[2] ~= 'leased' then return 0 end
redis.call('ZREM', P .. 'queue:leased', id)
if outcome == 'done' then
  redis.call('DEL', item)
  return 1
end
redis.call('HDEL', item, 'lost')  -- the holder survived the item
if outcome == 'back' then
  redis.call('HSET', item, 'state', 'waiting')
  redis.call('ZADD', P .. 'queue:waiting', clock(), id)
else
  redis.call('HINCRBY', item, 'attempts', 1)
  redis.call('HSET', item, 'state', 'parked', 'code', code, 'why', why, 'hint', hint)
  redis.call('HDEL', item, 'staged', 'resolution')
  redis.call('ZADD', P .. 'queue:parked', clock(), id)
end
return 1
