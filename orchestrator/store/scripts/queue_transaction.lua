-- Queues a transaction for the relayer, unless it was queued before.
local key = P .. 'relay:' .. kind .. ':' .. name
local state = redis.call('HGET', key, 'state')
local same = redis.call('HGET', key, 'what') == body_hash
-- A request that was refused for a temporary reason, such as missing funds, may be queued again. Its row
-- keeps a count of one refusal, so that the relayer makes a dry run before it pays gas again.
if not state or (state == 'refused' and redis.call('HGET', key, 'passing') == '1') then
  local first = redis.call('HGET', key, 'at') or now_ms
  redis.call('DEL', key)
  redis.call('HSET', key, 'state', 'queued', 'what', body_hash, 'body', body, 'at', first, 'tries', 0, 'refusals',
    state and 1 or 0, 'reason', '')
  redis.call('ZADD', P .. 'relay:' .. kind, now_ms, name)
  same = true
end
return reply{same = same, fields = redis.call('HGETALL', key)}
