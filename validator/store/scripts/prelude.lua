-- Helpers that precede every script of the validator. All times are of Redis' clock (`clock`), in milliseconds.
local QUEUES = {'waiting', 'ready', 'again', 'leased', 'parked'}

-- Returns three values for an item: a table with the failures of each member; a table with `true` for each member that
-- gave the item up or may not judge it; and `true` if any member gave it up.
local function history_of(item)
  local fails, out, given, all = {}, {}, false, redis.call('HGETALL', item)
  for i = 1, #all, 2 do
    local what, member = string.match(all[i], '^(%a+):(%w+)$')
    if what == 'fails' then fails[member] = tonumber(all[i + 1]) end
    if what == 'gave' or what == 'barred' then out[member] = true end
    if what == 'gave' then given = true end
  end
  return fails, out, given
end
-- Returns true if another member is present and can take the item, which the members in `out` can't. A member is
-- present for `silence_ms` after its last announcement.
local function others_left(me, out, silence_ms)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'well', '(' .. (clock() - silence_ms), '+inf')) do
    if member ~= me and not out[member] then return true end
  end
  return false
end
