-- Opens a session for a lease. A repeated call replaces the session's token; requests in progress go to other sessions.
local known = redis.call('GET', P .. 'work-key:' .. work_key)
if known then
  local state = redis.call('HGET', session_of(known), 'state')
  if not state or state == 'closed' then return reply{outcome = 'closed', id = known} end
  for _, request in ipairs(redis.call('SMEMBERS', P .. 'work:' .. known)) do try_again(request, now_ms, false, last) end
  redis.call('HSET', session_of(known), 'token', token_hash, 'arithmetic', arithmetic, 'free', 0)
  list_room(known)
  return reply{outcome = 'ok', id = known}
end
if redis.call('SCARD', P .. 'of-node:' .. node) >= most_of_node then return reply{outcome = 'node'} end
if redis.call('SCARD', P .. 'of-provider:' .. provider) >= most_of_provider then return reply{outcome = 'provider'} end
if redis.call('ZCARD', P .. 'sessions') >= most_sessions then return reply{outcome = 'total'} end
local row_ms = expiry_ms - now_ms + kept_ms
redis.call('SET', P .. 'work-key:' .. work_key, id, 'PX', row_ms)
redis.call('HSET', session_of(id), 'token', token_hash, 'node', node, 'provider', provider, 'digest', digest,
  'version', version, 'arithmetic', arithmetic, 'work_key', work_key, 'groups', groups, 'left', groups,
  'limit', limit, 'ends', ends_ms, 'opened', now_ms, 'state', 'open', 'free', 0, 'active', 0, 'bytes', 0, 'served', 0)
redis.call('PEXPIRE', session_of(id), row_ms)
redis.call('SADD', P .. 'of-node:' .. node, id)
redis.call('SADD', P .. 'of-provider:' .. provider, id)
redis.call('PEXPIRE', P .. 'of-node:' .. node, row_ms)
redis.call('PEXPIRE', P .. 'of-provider:' .. provider, row_ms)
redis.call('ZADD', P .. 'sessions', expiry_ms, id)
redis.call('ZADD', P .. 'alive', now_ms + alive_ms, id)
-- Requests of a version are limited to what its newest lease allows.
redis.call('HSET', P .. 'limits', digest, limit)
redis.call('HSET', P .. 'versions', digest, version)
return reply{outcome = 'ok', id = id}
