-- Deletes a node's record and invites. The node stays in the count of its origin until the record would have expired,
-- so that one origin can't register more nodes by removing others.
local node = P .. 'node:' .. address
local pool = redis.call('HGET', node, 'pool')
if pool then redis.call('ZREM', P .. 'pool:' .. pool, address) end
redis.call('ZREM', P .. 'expiry', address)
return redis.call('DEL', node, P .. 'invites:' .. address)
