-- Deletes a node's record and invites. Its origin's count stays until it expires: deregistering makes no room for
-- another address.
local node = P .. 'node:' .. address
local pool = redis.call('HGET', node, 'pool')
if pool then redis.call('ZREM', P .. 'pool:' .. pool, address) end
redis.call('ZREM', P .. 'expiry', address)
return redis.call('DEL', node, P .. 'invites:' .. address)
