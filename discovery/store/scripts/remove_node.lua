-- Deletes a node's record and invites, unless a newer registration is stored. A mark of the removal stays for as long as
-- an older registration would be valid: another service may still pass one on. The node stays in the count of its
-- origin until the record would have expired, so that one origin can't register more nodes by removing others.
prune(now_ms, 32)
local held = newest(address, now_ms)
local expires = math.min(now_ms, signed_ms) + life_ms
if not replaces(held, signed_ms, signature, true, direct) or expires <= now_ms then return 0 end
local own_bytes = 300 -- approximate size of a mark
local node, left = P .. 'node:' .. address, P .. 'left:' .. address
local pool = redis.call('HGET', node, 'pool')
if pool then redis.call('ZREM', P .. 'pool:' .. pool, address) end
redis.call('ZREM', P .. 'expiry', address)
redis.call('ZREM', P .. 'signed', address)
local deleted = redis.call('DEL', node, P .. 'invites:' .. address)
-- Anybody can sign removals with new keys, so the number of marks of unknown nodes is limited. A mark that replaces a
-- record here always has room.
local room = signature ~= '' and (held or on_ledger or redis.call('ZCARD', P .. 'left') < most_unknown)
if room and not direct then
  room = count_federated(address, source, own_bytes, most_federated, most_federated_bytes) or held
else
  uncount_federated(address)
end
if room then
  redis.call('HSET', left, 'signed', int(signed_ms), 'audience', audience, 'nonce', nonce, 'signature', signature,
    'expires', int(expires))
  redis.call('PEXPIRE', left, life_ms)
  redis.call('ZADD', P .. 'left', expires, address)
  redis.call('ZADD', P .. 'signed', 0, address)
end
return deleted
