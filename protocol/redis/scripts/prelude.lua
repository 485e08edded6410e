-- Begins every script. `P` is the prefix of all keys. It contains the hash tag, so a cluster keeps all keys in one
-- slot, and a script may use any of them. Scripts use only commands of Redis 6.2.
local P = KEYS[1]

-- Returns a whole number as text. Lua's own conversion writes numbers of 1e14 or more with an exponent.
local function int(number) return string.format('%.0f', number) end

-- Returns Redis' time in milliseconds, because the clocks of hosts that share a Redis may differ.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function set_fields(key, fields)
  for name, value in pairs(fields) do redis.call('HSET', key, name, value) end
end

-- Replay guard: decides whether a signed request is served. Takes address, nonce, now_us, nonce_kept_ms, interval_us,
-- tolerance_us and, optionally, attempt; returns 'admitted', 'replayed', or 'too-many' with the wait in microseconds.
-- The nonce is checked before the rate is charged, so that a replay does not use up the rate of its victim.
-- A caller that repeats a call whose answer was lost gives the same `attempt` and gets the same answer.
local function admit_request(r)
  local nonce_key, rate_key = P .. 'nonce:' .. r.address .. ':' .. r.nonce, P .. 'rate:' .. r.address
  local now, interval, tolerance = r.now_us, r.interval_us, r.tolerance_us
  local seen = redis.call('GET', nonce_key)
  if seen then return (r.attempt and seen == r.attempt) and 'admitted' or 'replayed', 0 end
  local due = tonumber(redis.call('GET', rate_key) or '0')
  -- `due` is earlier than now if the address was idle. It is too far ahead if a clock was wrong when it was stored.
  if due < now or due > now + tolerance + 2 * interval then due = now end
  if due - now > tolerance then return 'too-many', math.ceil(due - now - tolerance) end
  due = due + interval
  redis.call('SET', rate_key, int(due), 'PX', math.ceil((due - now) / 1000) + 1000)
  redis.call('SET', nonce_key, r.attempt or '1', 'PX', r.nonce_kept_ms)
  return 'admitted', 0
end
