-- Stores the new lines of an assignment's log, in order. The number of lines and bytes is bounded, so that one node's
-- log can't fill Redis; the oldest lines are deleted first. If all logs together exceed `most_total`, the oldest lines
-- of the largest log are deleted, so that nodes with long logs don't displace those of others.
local stored, logs = P .. 'assignment:' .. assignment, P .. 'logs:' .. assignment
local f = redis.call('HMGET', stored, 'node', 'log_next', 'log_until', 'log_bytes')
if f[1] ~= address then return reply{known = false} end
local following, lines, bytes = tonumber(f[2] or '0'), redis.call('XLEN', logs), tonumber(f[4] or '0')
if lines == 0 then bytes = 0 end
for i = 1, #sequences_and_lines, 2 do
  local sequence, line = tonumber(sequences_and_lines[i]), sequences_and_lines[i + 1]
  if sequence >= following then
    -- The id of the stream entry is the line's sequence number plus 1, so that a reader can start at any line. The 1 is
    -- added because ids of entries begin above 0.
    redis.call('XADD', logs, int(sequence + 1) .. '-1', 'line', line)
    following, lines, bytes = sequence + 1, lines + 1, bytes + #line
  end
end
while lines > 0 and (lines > most_lines or bytes > most_bytes) do
  for _, oldest in ipairs(redis.call('XRANGE', logs, '-', '+', 'COUNT', 16)) do
    if lines > most_lines or bytes > most_bytes then
      redis.call('XDEL', logs, oldest[1])
      lines, bytes = lines - 1, bytes - #oldest[2][2]
    end
  end
end
redis.call('HSET', stored, 'log_next', int(following), 'log_bytes', int(bytes), 'log_more', has_more and '1' or '0')
redis.call('PEXPIRE', logs, kept_ms)
set_log_size(assignment, bytes)
for _ = 1, most_cuts do
  local excess = tonumber(redis.call('GET', P .. 'log-total')) - most_total
  if excess <= 0 then break end
  local largest = redis.call('ZREVRANGE', P .. 'log-sizes', 0, 0, 'WITHSCORES')
  local id, size, freed, ids = largest[1], tonumber(largest[2]), 0, {}
  for _, oldest in ipairs(redis.call('XRANGE', P .. 'logs:' .. id, '-', '+', 'COUNT', 64)) do
    if freed < excess then freed, ids[#ids + 1] = freed + #oldest[2][2], oldest[1] end
  end
  if #ids > 0 then
    redis.call('XDEL', P .. 'logs:' .. id, unpack(ids))
    freed = math.min(freed, size)
    redis.call('HINCRBY', P .. 'assignment:' .. id, 'log_bytes', -freed)
  else
    freed = size -- Redis deleted the log, because its node had sent nothing for `kept_ms`
  end
  set_log_size(id, size - freed)
end
return reply{known = true, next_sequence = int(following), wanted_until_ms = f[3]}
