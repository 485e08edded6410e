-- Puts parked work back into the queue, with what a person decided of it, or to be tried from the beginning.
-- Answers 1, or 0 if it is not parked.
-- ARGV: id, now (ms), resolution or ''
local P, id = KEYS[1], ARGV[1]
if redis.call('ZREM', P .. 'queue:parked', id) == 0 then return 0 end
local item = P .. 'item:' .. id
redis.call('HSET', item, 'state', 'waiting', 'attempts', 0)
if ARGV[3] ~= '' then redis.call('HSET', item, 'resolution', ARGV[3]) end
redis.call('ZADD', P .. 'queue:waiting', ARGV[2], id)
return 1
