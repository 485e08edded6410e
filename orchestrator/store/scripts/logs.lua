-- Keeps the lines of an assignment's log that are new, in order; answers {next sequence, wanted until}.
-- The oldest lines make room: so many lines and so many bytes are kept, or one node's log could fill Redis.
-- ARGV: address, assignment, most lines kept, most bytes kept, kept for (ms), whether the node has more ('1' or '0'),
--       then sequence and line (JSON) in turn
local address, id, most, most_bytes, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local assignment, logs = P .. 'assignment:' .. id, P .. 'logs:' .. id
local f = redis.call('HMGET', assignment, 'node', 'log_next', 'log_until', 'log_bytes')
if f[1] ~= address then return {-1, 0} end
local next, lines, bytes = tonumber(f[2] or '0'), redis.call('XLEN', logs), tonumber(f[4] or '0')
if lines == 0 then bytes = 0 end
for i = 7, #ARGV, 2 do
  local sequence = tonumber(ARGV[i])
  if sequence >= next then
    -- The stream's id is the sequence itself (ids start above 0), so that a reader can begin anywhere.
    redis.call('XADD', logs, string.format('%.0f', sequence + 1) .. '-1', 'line', ARGV[i + 1])
    next, lines, bytes = sequence + 1, lines + 1, bytes + #ARGV[i + 1]
  end
end
while lines > 0 and (lines > most or bytes > most_bytes) do
  for _, oldest in ipairs(redis.call('XRANGE', logs, '-', '+', 'COUNT', 16)) do
    if lines > most or bytes > most_bytes then
      redis.call('XDEL', logs, oldest[1])
      lines, bytes = lines - 1, bytes - #oldest[2][2]
    end
  end
end
redis.call('HSET', assignment, 'log_next', string.format('%.0f', next), 'log_bytes', string.format('%.0f', bytes),
  'log_more', ARGV[6])
redis.call('PEXPIRE', logs, kept)
return {string.format('%.0f', next), f[3] or '0'}
