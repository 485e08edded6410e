-- Puts work into the queue unless it is there, whatever its state. Answers 1 if it was put.
-- What is there under the same key, but was submitted otherwise (a reorganisation that nobody saw), makes room.
-- ARGV: id, work, kind, deadline (s), delay (ms)
local P, id, now = KEYS[1], ARGV[1], clock()
local item = P .. 'item:' .. id
local there = redis.call('HGET', item, 'work')
if there == ARGV[2] then return 0 end
if there then
  redis.call('DEL', item)
  for _, queue in ipairs({'waiting', 'ready', 'again', 'leased', 'parked'}) do
    redis.call('ZREM', P .. 'queue:' .. queue, id)
  end
end
redis.call('HSET', item, 'work', ARGV[2], 'kind', ARGV[3], 'deadline', ARGV[4], 'seen', now, 'state', 'waiting')
redis.call('ZADD', P .. 'queue:waiting', now + ARGV[5], id)
return 1
