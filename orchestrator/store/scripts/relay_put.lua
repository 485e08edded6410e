-- Queues something to be carried to the ledger, unless it was queued before. Answers its fields as they are then.
-- ARGV: kind, name, what it is (a hash of the body), body, now
local kind, name, what, body, now = unpack(ARGV)
local key = P .. 'relay:' .. kind .. ':' .. name
local state = redis.call('HGET', key, 'state')
local same = redis.call('HGET', key, 'what') == what
-- What was refused for a passing reason (money that came since) may be tried again. That it was refused is remembered:
-- the ledger is asked before gas is paid for it again.
if not state or (state == 'refused' and redis.call('HGET', key, 'passing') == '1') then
  local first = redis.call('HGET', key, 'at') or now
  redis.call('DEL', key)
  redis.call('HSET', key, 'state', 'queued', 'what', what, 'body', body, 'at', first, 'tries', 0, 'refusals',
    state and 1 or 0, 'reason', '')
  redis.call('ZADD', P .. 'relay:' .. kind, now, name)
  same = true
end
return {same and 1 or 0, redis.call('HGETALL', key)}
