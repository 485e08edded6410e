-- Queues a transaction again after a reorg removed it from the ledger; returns 0 if it was not relayed before.
local key = P .. 'relay:' .. kind .. ':' .. name
if redis.call('HGET', key, 'state') ~= 'carried' then return 0 end
redis.call('HSET', key, 'state', 'queued')
redis.call('PERSIST', key)
redis.call('ZADD', P .. 'relay:' .. kind, now_ms, name)
return 1
