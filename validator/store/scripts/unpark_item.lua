-- Puts a parked item back into the queue, with a person's decision, or with all attempts left for every member. Returns
-- 0 if the item is not parked.
if redis.call('ZREM', P .. 'queue:parked', id) == 0 then return 0 end
local item = P .. 'item:' .. id
for _, field in ipairs(redis.call('HKEYS', item)) do
  if string.match(field, '^%a+:%w+$') or field == 'lost' or field == 'again' then redis.call('HDEL', item, field) end
end
redis.call('HSET', item, 'state', 'waiting', 'attempts', 0)
if resolution then redis.call('HSET', item, 'resolution', resolution) end
redis.call('ZADD', P .. 'queue:waiting', clock(), id)
return 1
