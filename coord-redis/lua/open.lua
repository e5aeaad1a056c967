-- Whether the namespace is ours and this user may do all that the other scripts do. KEYS[3] stands for any key of the namespace.
return guarded(function()
  local denied = {}
  local function need(...)
    if not redis.acl_check_cmd(...) then
      denied[#denied + 1] = (...)
    end
  end
  need('time')
  need('get', KEYS[1])
  need('set', KEYS[1], '')
  need('del', KEYS[1])
  need('zcard', KEYS[2])
  need('zadd', KEYS[2], '0', '')
  need('zrem', KEYS[2], '')
  need('zrangebylex', KEYS[2], '-', '+')
  need('exists', KEYS[3])
  need('hlen', KEYS[3])
  need('hstrlen', KEYS[3], 'v')
  need('hmget', KEYS[3], 'i')
  need('hexists', KEYS[3], 'v')
  need('hset', KEYS[3], 'v', '')
  need('hincrby', KEYS[3], 'c', '1')
  need('del', KEYS[3])
  if #denied > 0 then
    stop('denied', unpack(denied))
  end
  check_namespace()
  return { 'ok' }
end)
