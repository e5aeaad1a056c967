-- Reads keys at one instant. ARGV[3] is the most bytes of names and values to answer.
-- Answers 'ok', the seconds and microseconds of the server's clock, and for each key 0 if it is absent, else its three fields.
return guarded(function()
  check_namespace()
  local largest = tonumber(ARGV[3])
  -- The lengths first, so that an answer that would be too large is never built.
  local size = 0
  for n = 3, #KEYS do
    local length = typed(n, 'HSTRLEN', 'v')
    if length > 0 then
      size = size + #KEYS[n] - SKIP + length
    end
  end
  if size > largest then
    stop('large', size)
  end
  local time = redis.call('TIME')
  local answer = { 'ok', time[1], time[2] }
  size = 0
  for n = 3, #KEYS do
    local entry = redis.call('HMGET', KEYS[n], 'i', 'c', 'v')
    if entry[1] or entry[2] or entry[3] then
      if not (is_half(entry[1]) and is_half(entry[2]) and entry[3]) or redis.call('HLEN', KEYS[n]) ~= 3 then
        stop('corrupt', n, 'a hash that is no entry')
      end
      size = size + #KEYS[n] - SKIP + #entry[3]
      answer[n + 1] = entry
    elseif redis.call('EXISTS', KEYS[n]) == 1 then
      stop('corrupt', n, 'a hash that is no entry')
    else
      -- A nil would end the answer here.
      answer[n + 1] = 0
    end
  end
  -- Empty values were not counted above.
  if size > largest then
    stop('large', size)
  end
  return answer
end)
