-- Writes one transition of a node's life, if nothing happened to the node since it was read. 1: written, 0: it did.
-- ARGV: address, revision read ('' for a node that was not there), now, before, after, event, cause, actor, reason,
--       deadline (ms, 'clear' or 'keep'), removal (ms, 'clear' or 'keep'), overdue (ms: only if the deadline is not
--       later; '' always), quiet ('1': no line in the history), then fields to set.
local address, revision, now = ARGV[1], ARGV[2], ARGV[3]
local before, after, event, cause, actor, reason = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local deadline, removal, overdue, quiet = ARGV[10], ARGV[11], ARGV[12], ARGV[13]
local node = P .. 'node:' .. address

if (redis.call('HGET', node, 'rev') or '') ~= revision then return 0 end
if overdue ~= '' then
  local due = redis.call('ZSCORE', P .. 'deadlines', address)
  if not due or tonumber(due) > tonumber(overdue) then return 0 end
end

redis.call('ZADD', P .. 'nodes', 0, address)
redis.call('HSET', node, 'state', after, 'reason', reason)
redis.call('HINCRBY', node, 'rev', 1)
if before ~= after or revision == '' then redis.call('HSET', node, 'since', now) end
if deadline == 'clear' then redis.call('ZREM', P .. 'deadlines', address)
elseif deadline ~= 'keep' then redis.call('ZADD', P .. 'deadlines', deadline, address) end
if removal == 'clear' then redis.call('ZREM', P .. 'removals', address)
elseif removal ~= 'keep' then redis.call('ZADD', P .. 'removals', 'NX', removal, address) end
for i = 14, #ARGV, 2 do redis.call('HSET', node, ARGV[i], ARGV[i + 1]) end

if quiet ~= '1' then
  redis.call('XADD', P .. 'history:' .. address, 'MAXLEN', '~', HISTORY_KEPT, '*',
    'time', now, 'before', before, 'after', after, 'event', event, 'cause', cause, 'actor', actor)
  -- A node that joined is unhealthy until it speaks; the event says that it joined.
  if before ~= after then emit(now, 'node.' .. (event == 'joined' and event or after), cause, actor, address, '') end
end
changed(address)
return 1
