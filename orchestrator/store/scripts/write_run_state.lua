-- Writes fields of the run's state, and the demand of one step. An empty value deletes its field. Returns 0 if the
-- state changed after it was read, and -1 if the caller lost the leader lease.
if not holds(loop, lease) then return -1 end
local state = P .. 'run:state'
if (redis.call('HGET', state, 'rev') or '') ~= revision then return 0 end
redis.call('HINCRBY', state, 'rev', 1)
for name, value in pairs(fields) do
  if value == '' then redis.call('HDEL', state, name) else redis.call('HSET', state, name, value) end
end
if step then
  redis.call('HSET', P .. 'run:step:' .. step, 'demand', demand, 'rounds', rounds)
  redis.call('ZADD', P .. 'run:steps', step, step)
end
if kind ~= '' then emit(now_ms, kind, detail, actor, '', '') end
return 1
