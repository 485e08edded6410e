-- Begins every script of the validator. Times are Redis' own (`clock`).
local QUEUES = {'waiting', 'ready', 'again', 'leased', 'parked'}

-- Returns, as tables by member: failures at an item, and members that can't take it (they gave it up, or may not judge
-- it). Third, whether any member gave it up.
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
-- True if another member is present and can take the item. Members count as present for `silence_ms`.
local function others_left(me, out, silence_ms)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'well', '(' .. (clock() - silence_ms), '+inf')) do
    if member ~= me and not out[member] then return true end
  end
  return false
end
