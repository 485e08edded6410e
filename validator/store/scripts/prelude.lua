-- What every script begins with. Time is Redis' own: hosts that share it need not agree on theirs.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- How often each member failed at an item, and who is out of it: who gave it up, or may not judge it; each as a table by
-- member. And whether anybody gave it up.
local function told_of(item)
  local fails, out, given, all = {}, {}, false, redis.call('HGETALL', item)
  for i = 1, #all, 2 do
    local what, member = string.match(all[i], '^(%a+):(%w+)$')
    if what == 'fails' then fails[member] = tonumber(all[i + 1]) end
    if what == 'gave' or what == 'barred' then out[member] = true end
    if what == 'gave' then given = true end
  end
  return fails, out, given
end
-- Whether somebody else is at work here, and not out of it. Members count for `silence` ms after their last sign.
local function others_left(P, me, out, silence)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'well', '(' .. (clock() - silence), '+inf')) do
    if member ~= me and not out[member] then return true end
  end
  return false
end
