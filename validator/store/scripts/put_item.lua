-- Adds an item, unless it is in the queue in any state; returns 1 if it was added.
-- If a reorg replaced the submission under this key, the stored item has the old submission, and is replaced.
local item, now = P .. 'item:' .. id, clock()
local stored = redis.call('HGET', item, 'work')
if stored == work then return 0 end
if stored then
  redis.call('DEL', item)
  for _, queue in ipairs(QUEUES) do redis.call('ZREM', P .. 'queue:' .. queue, id) end
end
redis.call('HSET', item, 'work', work, 'kind', kind, 'deadline', deadline_s, 'seen', now, 'state', 'waiting')
redis.call('ZADD', P .. 'queue:waiting', now + delay_ms, id)
return 1
