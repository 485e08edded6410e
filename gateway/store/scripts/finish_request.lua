-- Accepts a session's answer: adds it to the session's list, and ends the request or lets a verifier judge it first.
if not holds_session(session, token_hash) then return reply{outcome = 'denied'} end
local key = request_of(request)
local r = redis.call('HMGET', key, 'state', 'session', 'attempt', 'kind', 'body', 'seed', 'choices', 'verify', 'digest',
  'node', 'outcome', 'cap')
local accepted = r[1] == 'verifying' or (r[1] == 'done' and (r[11] == 'answered' or r[11] == 'unverified'))
if accepted and r[2] == session and number(r[3]) == attempt then return reply{outcome = 'again'} end
if r[1] ~= 'assigned' or r[2] ~= session or number(r[3]) ~= attempt then return reply{outcome = 'gone'} end
take_back(request, true)
redis.call('DEL', P .. 'stalls:' .. r[10])
for _, value in ipairs({request, r[4], r[5], r[6], r[7], answer}) do
  redis.call('RPUSH', P .. 'served:' .. session, value)
end
redis.call('PEXPIRE', P .. 'served:' .. session, math.max(1000, redis.call('PTTL', session_of(session))))
local bucket = P .. 'written:' .. int(math.floor(now_ms / 10000))
redis.call('INCRBY', bucket, written)
redis.call('PEXPIRE', bucket, 90000)
redis.call('HSETNX', session_of(session), 'first_served', now_ms)
redis.call('HINCRBY', session_of(session), 'served', 1)
local queue = P .. 'verify:' .. r[9]
local wanted = r[8] == 'before' or (sampled and redis.call('ZCARD', queue) < QUEUED_VERIFICATIONS)
if wanted then
  local verification = P .. 'verification:' .. request
  redis.call('HSET', verification, 'kind', r[4], 'body', r[5], 'seed', r[6], 'digest', r[9], 'node', r[10], 'answer', shown,
    'ends', now_ms + verify_ms, 'mode', r[8], 'cap', r[12], 'last', last, 'used', used, 'attempt', attempt)
  redis.call('PEXPIRE', verification, verify_ms + kept_ms)
  redis.call('ZADD', queue, now_ms, request)
  redis.call('ZADD', P .. 'verify-ends', now_ms + verify_ms, request)
  ring('v')
end
if r[8] == 'before' then
  redis.call('HSET', key, 'state', 'verifying')
else
  settle(request, 'answered', used, last)
end
ring('s' .. session)
return reply{outcome = 'ok'}
