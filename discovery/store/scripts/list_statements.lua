-- Returns up to `limit` signed statements after an address, without expired ones.
local index = P .. 'signed'
local from = after == '' and '-' or '(' .. after
local members, records = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, limit), {}
for _, address in ipairs(members) do
  local f = redis.call('HMGET', P .. 'node:' .. address, 'expires', 'last', 'signed_at', 'registration', 'signed',
    'audience', 'nonce', 'signature')
  local l = redis.call('HMGET', P .. 'left:' .. address, 'expires', 'signed', 'audience', 'nonce', 'signature')
  if f[1] then
    -- An older release that shares this Redis replaces the registration without the signature.
    if tonumber(f[1]) > now_ms and f[2] == f[3] then
      records[#records + 1] = {'node', address, 'body', f[4], 'timestamp_ms', f[5], 'audience', f[6], 'nonce', f[7],
        'signature', f[8]}
    end
  elseif l[1] then
    if tonumber(l[1]) > now_ms then
      records[#records + 1] = {'node', address, 'timestamp_ms', l[2], 'audience', l[3], 'nonce', l[4],
        'signature', l[5]}
    end
  else
    redis.call('ZREM', index, address)
  end
end
return reply{last = #members == limit and members[limit], records = records}
