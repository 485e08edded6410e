-- Puts parked work back into the queue, with what a person decided of it, or to be tried from the beginning by all.
-- Answers 1, or 0 if it is not parked.
-- ARGV: id, resolution or ''
local P, id = KEYS[1], ARGV[1]
if redis.call('ZREM', P .. 'queue:parked', id) == 0 then return 0 end
local item = P .. 'item:' .. id
for _, field in ipairs(redis.call('HKEYS', item)) do
  if string.match(field, '^%a+:%w+$') or field == 'lost' or field == 'again' then redis.call('HDEL', item, field) end
end
redis.call('HSET', item, 'state', 'waiting', 'attempts', 0)
if ARGV[2] ~= '' then redis.call('HSET', item, 'resolution', ARGV[2]) end
redis.call('ZADD', P .. 'queue:waiting', clock(), id)
return 1
