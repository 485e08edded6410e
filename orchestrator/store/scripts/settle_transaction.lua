-- Writes the state of a queued transaction: relayed, refused, or postponed. Returns 0 if the transaction is not queued
-- any more, and -1 if the caller lost the leader lease.
if not holds('relayer', lease) then return -1 end
local key = P .. 'relay:' .. kind .. ':' .. name
if redis.call('HGET', key, 'state') ~= 'queued' then return 0 end
redis.call('HSET', key, 'state', state, 'reason', reason, 'passing', passing and 1 or 0)
if refused then redis.call('HINCRBY', key, 'refusals', 1) end
if state == 'queued' then
  redis.call('HINCRBY', key, 'tries', 1)
  redis.call('ZADD', P .. 'relay:' .. kind, due_ms, name)
else
  redis.call('ZREM', P .. 'relay:' .. kind, name)
  redis.call('PEXPIRE', key, kept_ms)
end
return 1
