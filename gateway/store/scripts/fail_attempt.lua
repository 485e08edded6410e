-- Ends a session's attempt without an answer.
-- A failure that blames the client is believed if a session of another node said the same, or no other node serves.
if not holds_session(session, token_hash) then return reply{outcome = 'denied'} end
local key = request_of(request)
local r = redis.call('HMGET', key, 'state', 'session', 'attempt', 'digest', 'node', 'fault', 'tried')
if r[1] ~= 'assigned' or r[2] ~= session or number(r[3]) ~= attempt then return reply{outcome = 'gone'} end
redis.call('ZADD', P .. 'alive', 'GT', now_ms + alive_ms, session)
if client_fault ~= '' then
  local others = false
  for _, s in ipairs(candidates(r[4], now_ms)) do
    if s.node ~= r[5] and not string.find(r[7] or '', s.node, 1, true) then others = true end
  end
  if r[6] == client_fault or not others then
    take_back(request, false)
    settle(request, 'refused', 0, fault)
    return reply{outcome = 'ok', ended = true}
  end
  redis.call('HSET', key, 'fault', client_fault)
end
if strike_ms > 0 then
  -- Answers that contradict their own parts: the third one within the time costs the node the gateway's trust.
  local strikes = P .. 'strikes:' .. r[5]
  if redis.call('INCR', strikes) >= 3 then redis.call('SET', P .. 'distrusted:' .. r[5], 'malformed', 'PX', strike_ms) end
  redis.call('PEXPIRE', strikes, strike_ms)
elseif client_fault == '' then
  count_stall(r[5])  -- otherwise a node could take requests and refuse them all at once
end
try_again(request, now_ms, true, last)
return reply{outcome = 'ok', ended = redis.call('HGET', key, 'state') == 'done'}
