-- Queues once more what was carried and is not on the ledger: the chain took it back. 1: queued, 0: it was not carried.
-- ARGV: kind, name, now
local kind, name, now = unpack(ARGV)
local key = P .. 'relay:' .. kind .. ':' .. name
if redis.call('HGET', key, 'state') ~= 'carried' then return 0 end
redis.call('HSET', key, 'state', 'queued')
redis.call('PERSIST', key)
redis.call('ZADD', P .. 'relay:' .. kind, now, name)
return 1
