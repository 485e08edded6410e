-- Functions that are prepended to every script of the gateway.
-- The caller sets these constants: most_attempts, answer_ms (time without progress until an attempt counts as lost),
-- kept_ms (time for which the rows of ended requests are kept), and list_bytes (maximum size of a session's list).
local CANDIDATES = 64
-- Waiting requests that are looked through, so that some which fit no session do not block those after them.
local SCANNED = 512
local QUEUED_VERIFICATIONS = 1024

local function request_of(id) return P .. 'request:' .. id end
local function session_of(id) return P .. 'session:' .. id end
local function number(text) return tonumber(text or '0') or 0 end

-- Wakes long polls of sessions and verifiers at all replicas.
local function ring(message) redis.call('PUBLISH', P .. 'doorbell', message) end

-- Wakes the client of a request, which is connected to one replica.
local function ring_client(id, replica) redis.call('PUBLISH', P .. 'doorbell:' .. replica, id) end

-- Lists a session among those with room, or removes it if it gets no further requests.
local function list_room(id)
  local s = redis.call('HMGET', session_of(id), 'digest', 'state', 'free', 'left')
  if not s[1] then return end
  if s[2] == 'open' and number(s[3]) > 0 and number(s[4]) > 0 and redis.call('ZSCORE', P .. 'alive', id) then
    redis.call('ZADD', P .. 'room:' .. s[1], number(s[3]), id)
  else
    redis.call('ZREM', P .. 'room:' .. s[1], id)
  end
end

-- Returns sessions that may get requests now; random ones if there are many, so that no provider's sessions hide others.
local function candidates(digest, now)
  local found = {}
  for _, id in ipairs(redis.call('ZRANDMEMBER', P .. 'room:' .. digest, CANDIDATES)) do
    local s = redis.call('HMGET', session_of(id), 'node', 'free', 'left', 'limit', 'bytes', 'active', 'arithmetic')
    if number(redis.call('ZSCORE', P .. 'alive', id)) > now and redis.call('EXISTS', P .. 'distrusted:' .. s[1]) == 0 then
      found[#found + 1] = {id = id, node = s[1], free = number(s[2]), left = number(s[3]), limit = number(s[4]),
        bytes = number(s[5]), active = number(s[6]), arithmetic = s[7],
        load = number(redis.call('HGET', P .. 'load', s[1])), last = number(redis.call('HGET', P .. 'last', s[1]))}
    end
  end
  return found
end

local function better(s, best)
  if not best or s.load ~= best.load then return not best or s.load < best.load end
  if s.last ~= best.last then return s.last < best.last end
  return s.free > best.free
end

-- Returns the session for a request: of the node with the fewest choices in progress, the one with the most room.
-- Among nodes with equally many, it is the one whose last request is the longest ago, so that all nodes get work.
-- Nodes in `tried` answered wrongly, so they don't get the request again; those in `avoid` were slow or lost.
local function choose(sessions, r)
  local best, last_resort
  for _, s in ipairs(sessions) do
    local room = s.free >= r.choices or (s.free > 0 and s.active == 0)
    local fits = s.left >= r.choices and s.limit >= r.new_tokens and s.bytes + r.cost <= list_bytes
    if room and fits and not string.find(r.tried, s.node, 1, true) then
      if string.find(r.avoid, s.node, 1, true) then
        if better(s, last_resort) then last_resort = s end
      elseif better(s, best) then
        best = s
      end
    end
  end
  return best or last_resort
end

-- Gives waiting requests to sessions with room; those that wait longest first.
local function assign(digest, now)
  local queue = P .. 'waiting:' .. digest
  local ids = redis.call('ZRANGE', queue, 0, SCANNED - 1)
  if #ids == 0 then return end
  local sessions = candidates(digest, now)
  for _, id in ipairs(ids) do
    if #sessions == 0 then return end
    local row = redis.call('HMGET', request_of(id), 'choices', 'new_tokens', 'cost', 'tried', 'avoid')
    local r = {choices = number(row[1]), new_tokens = number(row[2]), cost = number(row[3]), tried = row[4] or '',
      avoid = row[5] or ''}
    local s = choose(sessions, r)
    if not row[1] then
      redis.call('ZREM', queue, id)
    elseif s then
      redis.call('ZREM', queue, id)
      s.free, s.left, s.bytes = math.max(0, s.free - r.choices), s.left - r.choices, s.bytes + r.cost
      s.active = s.active + 1
      local turn = redis.call('INCR', P .. 'turns')
      for _, other in ipairs(sessions) do
        if other.node == s.node then other.load, other.last = other.load + r.choices, turn end
      end
      redis.call('HINCRBY', P .. 'load', s.node, r.choices)
      redis.call('HSET', P .. 'last', s.node, turn)
      redis.call('HSET', session_of(s.id), 'free', s.free, 'left', s.left, 'bytes', s.bytes, 'active', s.active)
      redis.call('HSET', request_of(id), 'state', 'assigned', 'session', s.id, 'node', s.node, 'arithmetic', s.arithmetic,
        'next', 0, 'tokens', 0, 'size', 0, 'cap', s.limit)
      redis.call('DEL', P .. 'counts:' .. id)
      redis.call('SADD', P .. 'work:' .. s.id, id)
      redis.call('RPUSH', P .. 'inbox:' .. s.id, id)
      redis.call('ZADD', P .. 'progress', now + answer_ms, id)
      list_room(s.id)
      ring('s' .. s.id)
    end
  end
end

-- Takes a request from its session. `kept`: the session has answered it, so its choices stay used.
local function take_back(id, kept)
  local r = redis.call('HMGET', request_of(id), 'session', 'node', 'choices', 'cost')
  redis.call('ZREM', P .. 'progress', id)
  if not r[1] or redis.call('SREM', P .. 'work:' .. r[1], id) == 0 then return end
  redis.call('LREM', P .. 'inbox:' .. r[1], 0, id)
  if redis.call('HINCRBY', P .. 'load', r[2], -number(r[3])) <= 0 then redis.call('HDEL', P .. 'load', r[2]) end
  local session = session_of(r[1])
  if redis.call('EXISTS', session) == 0 then return end
  redis.call('HINCRBY', session, 'active', -1)
  if not kept then
    redis.call('HINCRBY', session, 'left', number(r[3]))
    redis.call('HINCRBY', session, 'bytes', -number(r[4]))
  end
  list_room(r[1])
end

-- Ends a request: gives back what its token reserved, and writes the last entry for the client.
-- `used`: tokens that count for the token's quota.
local function settle(id, outcome, used, last)
  local key = request_of(id)
  local r = redis.call('HMGET', key, 'token', 'reserved', 'day', 'replica', 'state', 'digest')
  if not r[1] or r[5] == 'done' then return end
  redis.call('HSET', key, 'state', 'done', 'outcome', outcome)
  redis.call('ZREM', P .. 'waiting:' .. r[6], id)
  redis.call('SREM', P .. 'active:' .. r[1], id)
  redis.call('SREM', P .. 'requests:' .. r[4], id)
  redis.call('HINCRBY', P .. 'day:' .. r[1], r[3], used - number(r[2]))
  if last then
    redis.call('XADD', P .. 'parts:' .. id, '*', 'end', last)
    ring_client(id, r[4])
  end
  redis.call('PEXPIRE', key, kept_ms)
  redis.call('PEXPIRE', P .. 'parts:' .. id, kept_ms)
  redis.call('PEXPIRE', P .. 'counts:' .. id, kept_ms)
  if outcome == 'cancelled' then  -- nobody reads it any more
    redis.call('HDEL', key, 'body')
    redis.call('DEL', P .. 'parts:' .. id, P .. 'counts:' .. id)
  end
end

-- Gives a request to another session, or ends it with `last` after the last attempt. `exclude`: not to this node again.
local function try_again(id, now, exclude, last)
  take_back(id, false)
  local key = request_of(id)
  local r = redis.call('HMGET', key, 'attempt', 'created', 'digest', 'node', 'tried', 'state', 'avoid')
  if not r[1] or r[6] == 'done' then return end
  if exclude then
    redis.call('HSET', key, 'tried', (r[5] or '') .. r[4])
  else
    redis.call('HSET', key, 'avoid', (r[7] or '') .. r[4])
  end
  if number(r[1]) + 1 >= most_attempts then return settle(id, 'failed', 0, last) end
  redis.call('HSET', key, 'attempt', number(r[1]) + 1, 'state', 'waiting', 'session', '')
  redis.call('ZADD', P .. 'waiting:' .. r[3], number(r[2]), id)
  assign(r[3], now)
end

-- Cancels a request whose client is gone.
local function cancel(id)
  local r = redis.call('HMGET', request_of(id), 'state', 'session', 'tokens')
  if not r[1] or r[1] == 'done' then return end
  if r[1] == 'assigned' then
    redis.call('SADD', P .. 'cancelled:' .. r[2], id)
    redis.call('PEXPIRE', P .. 'cancelled:' .. r[2], kept_ms)
    take_back(id, false)
    ring('s' .. r[2])
  end
  settle(id, 'cancelled', r[1] ~= 'waiting' and number(r[3]) or 0, nil)
end

-- Removes a session from all lists; its row stays, so that closing can be repeated.
local function end_session(id, now, last)
  local s = redis.call('HMGET', session_of(id), 'node', 'provider', 'digest', 'state')
  if not s[1] or s[4] == 'closed' then return end
  redis.call('HSET', session_of(id), 'state', 'closed')
  redis.call('ZREM', P .. 'alive', id)
  redis.call('ZREM', P .. 'sessions', id)
  redis.call('ZREM', P .. 'room:' .. s[3], id)
  redis.call('SREM', P .. 'of-node:' .. s[1], id)
  redis.call('SREM', P .. 'of-provider:' .. s[2], id)
  for _, request in ipairs(redis.call('SMEMBERS', P .. 'work:' .. id)) do try_again(request, now, false, last) end
end

-- Counts an attempt in which a session that polls sent nothing for too long. A node that takes requests and never
-- answers would delay each of its requests by `answer_ms`, so it rests after three attempts in a row.
local function count_stall(node)
  local stalls = P .. 'stalls:' .. node
  if redis.call('INCR', stalls) >= 3 then
    redis.call('SET', P .. 'distrusted:' .. node, 'stalled', 'NX', 'PX', 10 * answer_ms)
    redis.call('DEL', stalls)
  else
    redis.call('PEXPIRE', stalls, 60 * answer_ms)
  end
end

-- Returns whether the caller has the session's token.
local function holds_session(id, token_hash)
  return redis.call('HGET', session_of(id), 'token') == token_hash
end
