-- Deletes a node's record and invites, unless a newer registration is stored. A mark of the removal stays for as long as
-- an older registration would be valid: another service may still pass one on. The node stays in the count of its
-- origin until the record would have expired, so that one origin can't register more nodes by removing others.
prune(now_ms, 32)
local held = newest(address, now_ms)
local expires = math.min(now_ms, signed_ms) + life_ms
if not replaces(held, signed_ms, signature, true, direct) or expires <= now_ms then return 0 end
local node, left = P .. 'node:' .. address, P .. 'left:' .. address
local pool = redis.call('HGET', node, 'pool')
if pool then redis.call('ZREM', P .. 'pool:' .. pool, address) end
redis.call('ZREM', P .. 'expiry', address)
redis.call('ZREM', P .. 'signed', address)
local deleted = redis.call('DEL', node, P .. 'invites:' .. address)
-- Anybody can sign removals with new keys, so the number of marks of unknown nodes is limited.
if signature ~= '' and (held or on_ledger or redis.call('ZCARD', P .. 'left') < most_unknown) then
  redis.call('HSET', left, 'signed', int(signed_ms), 'audience', audience, 'nonce', nonce, 'signature', signature,
    'expires', int(expires))
  redis.call('PEXPIRE', left, life_ms)
  redis.call('ZADD', P .. 'left', expires, address)
  redis.call('ZADD', P .. 'signed', 0, address)
end
return deleted
