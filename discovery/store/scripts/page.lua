-- KEYS: pool. Answers {last address or '', then for each record: address, registration, ip, first, last, expires}.
local prefix, after, most, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local from = after == '' and '-' or '(' .. after
local members = redis.call('ZRANGEBYLEX', KEYS[1], from, '+', 'LIMIT', 0, most)
local answer = {#members == most and members[most] or ''}
for _, address in ipairs(members) do
  local record = redis.call('HMGET', prefix .. 'node:' .. address, 'registration', 'ip', 'first', 'last', 'expires')
  if not record[1] then
    redis.call('ZREM', KEYS[1], address)
  elseif tonumber(record[5]) > now then
    answer[#answer + 1] = {address, record[1], record[2], record[3], record[4], record[5]}
  end
end
return answer
