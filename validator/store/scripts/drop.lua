-- Forgets work in whatever state it is; who holds it loses its lease. Answers how many there were.
-- ARGV: ids
local P, dropped = KEYS[1], 0
for _, id in ipairs(ARGV) do
  dropped = dropped + redis.call('DEL', P .. 'item:' .. id)
  for _, queue in ipairs({'waiting', 'ready', 'again', 'leased', 'parked'}) do
    redis.call('ZREM', P .. 'queue:' .. queue, id)
  end
end
return dropped
