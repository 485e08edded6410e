-- This file is prepended to every script of the discovery service.
-- A node has a record (`node:ADDRESS`) or, after it removed itself, a mark of its removal (`left:ADDRESS`), or neither.
-- `signed` lists the nodes with a record or mark that other services may get. `federated` has the peer and the bytes of
-- each record or mark that a peer passed on, and `federated-sums` the number (`n:PEER`) and bytes (`b:PEER`) of each peer.

-- Takes a node's record or mark out of its peer's sums.
local function uncount_federated(address)
  local held = redis.call('HGET', P .. 'federated', address)
  if not held then return end
  local bytes, peer = string.match(held, '^(%d+) (.*)$')
  redis.call('HINCRBY', P .. 'federated-sums', 'n:' .. peer, -1)
  redis.call('HINCRBY', P .. 'federated-sums', 'b:' .. peer, '-' .. bytes)
  redis.call('HDEL', P .. 'federated', address)
end

-- Counts a node's record or mark for the peer that passed it on; returns false and changes nothing if the peer has
-- reached its limit of records or bytes. A refresh that takes no more bytes is always admitted.
local function count_federated(address, peer, bytes, most_records, most_bytes)
  local sums = redis.call('HMGET', P .. 'federated-sums', 'n:' .. peer, 'b:' .. peer)
  local records, total = tonumber(sums[1] or '0'), tonumber(sums[2] or '0')
  local held_bytes, held_peer = string.match(redis.call('HGET', P .. 'federated', address) or '', '^(%d+) (.*)$')
  local own = held_peer == peer
  local more = bytes - (own and tonumber(held_bytes) or 0)
  if (not own and records + 1 > most_records) or (more > 0 and total + more > most_bytes) then return false end
  uncount_federated(address)
  redis.call('HSET', P .. 'federated', address, int(bytes) .. ' ' .. peer)
  redis.call('HINCRBY', P .. 'federated-sums', 'n:' .. peer, 1)
  redis.call('HINCRBY', P .. 'federated-sums', 'b:' .. peer, int(bytes))
  return true
end

-- Deletes up to `limit` expired records with their invites, and as many marks; returns the number of deleted records.
local function prune(now, limit)
  local expired = redis.call('ZRANGEBYSCORE', P .. 'expiry', '-inf', now, 'LIMIT', 0, limit)
  for _, address in ipairs(expired) do
    local node = P .. 'node:' .. address
    local pool = redis.call('HGET', node, 'pool')
    if pool then redis.call('ZREM', P .. 'pool:' .. pool, address) end
    redis.call('DEL', node, P .. 'invites:' .. address)
    redis.call('ZREM', P .. 'expiry', address)
    redis.call('ZREM', P .. 'signed', address)
    uncount_federated(address)
  end
  for _, address in ipairs(redis.call('ZRANGEBYSCORE', P .. 'left', '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('DEL', P .. 'left:' .. address)
    redis.call('ZREM', P .. 'left', address)
    redis.call('ZREM', P .. 'signed', address)
    uncount_federated(address)
  end
  return #expired
end

-- Returns the time and signature of a node's newest statement that has not expired, and whether it is a removal; nil if
-- there is none. An older release stores records without a signature; then the time is the service's.
local function newest(address, now)
  local f = redis.call('HMGET', P .. 'node:' .. address, 'signed', 'signature', 'signed_at', 'last', 'expires')
  if f[5] and tonumber(f[5]) > now then
    if f[3] and f[3] == f[4] then return {ms = tonumber(f[1]), signature = f[2], left = false} end
    return {ms = tonumber(f[4]), signature = '', left = false}
  end
  local l = redis.call('HMGET', P .. 'left:' .. address, 'signed', 'signature', 'expires')
  if l[3] and tonumber(l[3]) > now then return {ms = tonumber(l[1]), signature = l[2], left = true} end
end

-- Returns whether a statement replaces the newest one. A direct request also replaces one of the same millisecond.
-- Other services pass statements on in any order: every service must choose the same one.
local function replaces(held, ms, signature, left, direct)
  if not held or ms > held.ms then return true end
  if ms < held.ms then return false end
  if direct then return true end
  if left ~= held.left then return left end
  return signature > held.signature
end
