-- Writes a validator's report as 'EXPIRY CLASS CLASS …', and deletes expired reports of others.
-- Redis deletes the whole hash when the newest report expires.
local key = P .. 'numerics'
local reports = redis.call('HGETALL', key)
for i = 1, #reports, 2 do
  if tonumber(string.match(reports[i + 1], '^%d+')) <= now_ms then redis.call('HDEL', key, reports[i]) end
end
redis.call('HSET', key, validator, table.concat({string.format('%d', now_ms + life_ms), unpack(classes)}, ' '))
redis.call('PEXPIRE', key, life_ms)
return 1
