-- KEYS: node, expiry. The origin's count stays until it runs out: signing off does not make room for another address.
local prefix, address = ARGV[1], ARGV[2]
local pool = redis.call('HGET', KEYS[1], 'pool')
if pool then redis.call('ZREM', prefix .. 'pool:' .. pool, address) end
redis.call('ZREM', KEYS[2], address)
return redis.call('DEL', KEYS[1], prefix .. 'invites:' .. address)
