-- Writes a state transition of a node; returns 0 if the node's row changed after it was read, or if the node's deadline
-- is later than `only_if_due_by_ms`.
local node = P .. 'node:' .. address

if (redis.call('HGET', node, 'rev') or '') ~= revision then return 0 end
if only_if_due_by_ms then
  local due = redis.call('ZSCORE', P .. 'deadlines', address)
  if not due or tonumber(due) > only_if_due_by_ms then return 0 end
end

redis.call('ZADD', P .. 'nodes', 0, address)
redis.call('HSET', node, 'state', after, 'reason', reason)
redis.call('HINCRBY', node, 'rev', 1)
if before ~= after or revision == '' then redis.call('HSET', node, 'since', now_ms) end
if deadline == 'clear' then redis.call('ZREM', P .. 'deadlines', address)
elseif deadline ~= 'keep' then redis.call('ZADD', P .. 'deadlines', deadline, address) end
if removal == 'clear' then redis.call('ZREM', P .. 'removals', address)
elseif removal ~= 'keep' then redis.call('ZADD', P .. 'removals', 'NX', removal, address) end
set_fields(node, fields)
touch(node)

if not quiet then
  redis.call('XADD', P .. 'history:' .. address, 'MAXLEN', '~', HISTORY_KEPT, '*',
    'time', now_ms, 'before', before, 'after', after, 'event', event, 'cause', cause, 'actor', actor)
  -- A new member is unhealthy until its first heartbeat. The event of a join is `node.joined`, because `node.unhealthy`
  -- would look like a fault.
  if before ~= after then emit(now_ms, 'node.' .. (event == 'joined' and event or after), cause, actor, address, '') end
end
changed(address)
return 1
