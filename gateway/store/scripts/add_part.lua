-- Stores the next part of an answer for its client.
if not holds_session(session, token_hash) then return reply{outcome = 'denied'} end
local key = request_of(request)
local r = redis.call('HMGET', key, 'state', 'session', 'attempt', 'next', 'cap', 'choices', 'size', 'replica', 'verify',
  'new_tokens', 'arithmetic', 'outcome')
local accepted = r[1] == 'verifying' or (r[1] == 'done' and (r[12] == 'answered' or r[12] == 'unverified'))
if accepted and r[2] == session and number(r[3]) == attempt then return reply{outcome = 'again'} end
if r[1] ~= 'assigned' or r[2] ~= session or number(r[3]) ~= attempt then return reply{outcome = 'gone'} end
if part < number(r[4]) then return reply{outcome = 'again'} end
if part > number(r[4]) then return reply{outcome = 'gap', expected = number(r[4])} end
local cap = number(r[10]) > 0 and number(r[10]) or number(r[5])
local added = 0
for choice, count in pairs(counts) do
  if number(choice) >= number(r[6]) then return reply{outcome = 'choice'} end
  added = added + number(count)
  if redis.call('HINCRBY', P .. 'counts:' .. request, choice, number(count)) > cap then return reply{outcome = 'tokens'} end
end
if number(r[7]) + #content > most_bytes then return reply{outcome = 'bytes'} end
redis.call('HINCRBY', key, 'next', 1)
redis.call('HINCRBY', key, 'tokens', added)
redis.call('HINCRBY', key, 'size', #content)
redis.call('ZADD', P .. 'progress', now_ms + answer_ms, request)
redis.call('ZADD', P .. 'alive', 'GT', now_ms + alive_ms, session)
redis.call('XADD', P .. 'parts:' .. request, '*', 'attempt', r[3], 'arithmetic', r[11], 'part', content)
if r[9] ~= 'before' then ring_client(request, r[8]) end
return reply{outcome = 'ok'}
