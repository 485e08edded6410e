-- Reports a session's room, and takes the requests that it shall answer.
if not holds_session(session, token_hash) then return reply{outcome = 'denied'} end
local key = session_of(session)
local s = redis.call('HMGET', key, 'state', 'digest', 'ends', 'left', 'first_served', 'bytes', 'active')
if s[1] == 'closed' then return reply{outcome = 'closed'} end
redis.call('ZADD', P .. 'alive', now_ms + alive_ms, session)

local requests, taken = {}, 0
local function collect()
  local inbox = P .. 'inbox:' .. session
  for _, id in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    local r = redis.call('HMGET', request_of(id), 'state', 'session', 'attempt', 'kind', 'body', 'seed', 'choices',
      'with_pieces')
    if r[1] == 'assigned' and r[2] == session then
      taken = taken + number(r[7])
      for _, value in ipairs({id, r[3], r[4], r[5], r[6], r[7], r[8]}) do requests[#requests + 1] = value end
    end
  end
  redis.call('DEL', inbox)
end

local first = number(s[5])
local closing = s[1] == 'closing' or now_ms >= number(s[3])
  or (number(s[4]) <= 0 and number(s[7]) == 0)
  or number(s[6]) > list_bytes / 2 or (first > 0 and now_ms - first >= slot_ms)
if closing then
  if s[1] == 'open' then redis.call('HSET', key, 'state', 'closing') end
  collect()
  list_room(session)
else
  collect()
  redis.call('HSET', key, 'free', math.max(0, free - taken))
  list_room(session)
  assign(s[2], now_ms)
  collect()
end
local gone = P .. 'cancelled:' .. session
local cancelled = redis.call('SMEMBERS', gone)
redis.call('DEL', gone)
-- The poll goes on if there is nothing to answer.
if #requests == 0 and #cancelled == 0 and not closing then
  redis.call('ZADD', P .. 'alive', now_ms + wait_ms + alive_ms, session)
end
return reply{outcome = 'ok', closing = closing, cancelled = cancelled, requests = requests}
