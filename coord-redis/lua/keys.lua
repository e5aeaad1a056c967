-- Lists names at one instant. ARGV[3] and ARGV[4] are the bounds, as ZRANGEBYLEX takes them, ARGV[5] the limit.
return guarded(function()
  check_namespace()
  return { 'ok', redis.call('ZRANGEBYLEX', KEYS[2], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5]) }
end)
