-- Applies all writes if all asserts hold. ARGV[3] is the incarnation of the keys that come into being, ARGV[4] the number of asserts.
-- Then an assert is the number of its key in KEYS, incarnation and count (both 0 for an absent key); after them, a put is its key,
-- 'p' and the value, a delete its key and 'd'.
return guarded(function()
  local empty = check_namespace()
  -- Read.
  local incarnation, count = {}, {}
  for n = 3, #KEYS do
    local fields = typed(n, 'HLEN')
    if fields > 0 then
      local entry = redis.call('HMGET', KEYS[n], 'i', 'c')
      if fields ~= 3 or not (is_half(entry[1]) and is_half(entry[2])) or redis.call('HEXISTS', KEYS[n], 'v') == 0 then
        stop('corrupt', n, 'a hash that is no entry')
      end
      incarnation[n], count[n] = entry[1], entry[2]
    end
  end
  -- Judge.
  local first = 5 + 3 * tonumber(ARGV[4])
  for at = 5, first - 1, 3 do
    local n = tonumber(ARGV[at])
    if (incarnation[n] or '0') ~= ARGV[at + 1] or (count[n] or '0') ~= ARGV[at + 2] then
      return { 'rejected' }
    end
  end
  local at = first
  while at <= #ARGV do
    local n = tonumber(ARGV[at])
    if ARGV[at + 1] == 'd' then
      at = at + 2
    else
      if count[n] == LARGEST then
        stop('corrupt', n, 'the last version that there can be')
      end
      at = at + 3
    end
  end
  -- Write. From here on no command can fail: the types are known, and the server has checked memory, disk and role before it
  -- began this script.
  local put, deleted = false, false
  at = first
  while at <= #ARGV do
    wrote = 1
    local n = tonumber(ARGV[at])
    local key, name = KEYS[n], string.sub(KEYS[n], SKIP + 1)
    if ARGV[at + 1] == 'd' then
      if count[n] then
        redis.call('DEL', key)
        redis.call('ZREM', KEYS[2], name)
        deleted = true
      end
      at = at + 2
    else
      if count[n] then
        redis.call('HINCRBY', key, 'c', 1)
        redis.call('HSET', key, 'v', ARGV[at + 2])
      else
        redis.call('HSET', key, 'i', ARGV[3], 'c', 1, 'v', ARGV[at + 2])
        redis.call('ZADD', KEYS[2], 0, name)
      end
      put = true
      at = at + 3
    end
  end
  if empty and put then
    redis.call('SET', KEYS[1], MARKER)
  elseif deleted and redis.call('ZCARD', KEYS[2]) == 0 then
    redis.call('DEL', KEYS[1])
  end
  return { 'applied' }
end)
