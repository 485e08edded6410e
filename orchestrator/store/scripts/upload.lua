-- Counts an upload that a node asks for against what it may have open, and may send in a window; answers {0, 0}, or
-- what is too much (1 open tickets, 2 files, 3 bytes) and for how long (ms). A ticket that is still open costs nothing
-- again; one for the same object in another size is another ticket, or a large file would go on a small one's account.
-- ARGV: owner, object, size, now, open until, most open, window, window's end, most files, most bytes,
-- which account besides ('other' or 'bytes'), and its most bytes
local owner, ticket, size = ARGV[1], ARGV[2] .. ' ' .. ARGV[3], tonumber(ARGV[3])
local now, till = tonumber(ARGV[4]), tonumber(ARGV[5])
local most_open, window, ends = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local open, sent = P .. 'uploads:' .. owner, P .. 'uploads:' .. owner .. ':' .. window
redis.call('ZREMRANGEBYSCORE', open, '-inf', now)
if not redis.call('ZSCORE', open, ticket) then
  if redis.call('ZCARD', open) >= most_open then
    return {1, tonumber(redis.call('ZRANGE', open, 0, 0, 'WITHSCORES')[2]) - now}
  end
  local f = redis.call('HMGET', sent, 'files', 'bytes', ARGV[11])
  if tonumber(f[1] or '0') + 1 > tonumber(ARGV[9]) then return {2, ends - now} end
  if tonumber(f[2] or '0') + size > tonumber(ARGV[10]) then return {3, ends - now} end
  if tonumber(f[3] or '0') + size > tonumber(ARGV[12]) then return {3, ends - now} end
  redis.call('HINCRBY', sent, 'files', 1)
  redis.call('HINCRBY', sent, 'bytes', ARGV[3])
  if ARGV[11] ~= 'bytes' then redis.call('HINCRBY', sent, ARGV[11], ARGV[3]) end
  redis.call('PEXPIRE', sent, ends - now + 1000)
end
redis.call('ZADD', open, till, ticket)
redis.call('PEXPIRE', open, till - now + 1000)
return {0, 0}
