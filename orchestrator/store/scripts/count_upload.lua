-- Counts an upload ticket against its owner's limit of open tickets and its quota of the present window, and refuses
-- the ticket if it would exceed either. A ticket that is still open is not counted again. The ticket's name contains
-- the file's size, so that a large file can't use the ticket of a small one.
local ticket = object .. ' ' .. int(size)
local open, sent = P .. 'uploads:' .. owner, P .. 'uploads:' .. owner .. ':' .. int(window)
local left_ms = window_ends_ms - now_ms
redis.call('ZREMRANGEBYSCORE', open, '-inf', now_ms)
if not redis.call('ZSCORE', open, ticket) then
  if redis.call('ZCARD', open) >= most_open then
    return reply{exceeded = 'open', wait_ms = tonumber(redis.call('ZRANGE', open, 0, 0, 'WITHSCORES')[2]) - now_ms}
  end
  local f = redis.call('HMGET', sent, 'files', 'bytes', account)
  if tonumber(f[1] or '0') + 1 > most_files then return reply{exceeded = 'files', wait_ms = left_ms} end
  if tonumber(f[2] or '0') + size > most_bytes then return reply{exceeded = 'bytes', wait_ms = left_ms} end
  if tonumber(f[3] or '0') + size > most_account_bytes then return reply{exceeded = 'bytes', wait_ms = left_ms} end
  redis.call('HINCRBY', sent, 'files', 1)
  redis.call('HINCRBY', sent, 'bytes', size)
  if account ~= 'bytes' then redis.call('HINCRBY', sent, account, size) end
  redis.call('PEXPIRE', sent, left_ms + 1000)
end
redis.call('ZADD', open, open_until_ms, ticket)
redis.call('PEXPIRE', open, open_until_ms - now_ms + 1000)
return reply{}
