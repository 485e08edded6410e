-- Deletes items in any state, leased ones included; returns the number of items that existed.
local dropped = 0
for _, id in ipairs(ids) do
  dropped = dropped + redis.call('DEL', P .. 'item:' .. id)
  for _, queue in ipairs(QUEUES) do redis.call('ZREM', P .. 'queue:' .. queue, id) end
end
return dropped
