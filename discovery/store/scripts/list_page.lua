-- Returns up to `limit` records of a pool after an address, without expired ones.
local index = P .. 'pool:' .. pool
local from = after == '' and '-' or '(' .. after
local members, records = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, limit), {}
for _, address in ipairs(members) do
  local f = redis.call('HMGET', P .. 'node:' .. address, 'registration', 'ip', 'first', 'last', 'expires', 'audience')
  if not f[1] then
    redis.call('ZREM', index, address)
  elseif tonumber(f[5]) > now_ms then
    records[#records + 1] = {'address', address, 'registration', f[1], 'ip', f[2], 'first', f[3], 'last', f[4],
      'expires', f[5], 'audience', f[6] or ''}
  end
end
return reply{last = #members == limit and members[limit], records = records}
