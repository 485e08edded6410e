-- Puts work into the queue unless it is there, whatever its state. Answers 1 if it was put.
-- ARGV: id, work, kind, deadline (s), seen (ms), not before (ms)
local P, id = KEYS[1], ARGV[1]
local item = P .. 'item:' .. id
if redis.call('EXISTS', item) == 1 then return 0 end
redis.call('HSET', item, 'work', ARGV[2], 'kind', ARGV[3], 'deadline', ARGV[4], 'seen', ARGV[5], 'state', 'waiting')
redis.call('ZADD', P .. 'queue:waiting', ARGV[6], id)
return 1
