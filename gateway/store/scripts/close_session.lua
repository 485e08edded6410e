-- Closes a session, and returns what its list has. May be repeated.
if not holds_session(session, token_hash) then return reply{outcome = 'denied'} end
end_session(session, now_ms, last)
local s = redis.call('HMGET', session_of(session), 'work_key', 'node')
return reply{outcome = 'ok', work_key = s[1], node = s[2], served = redis.call('LRANGE', P .. 'served:' .. session, 0, -1)}
