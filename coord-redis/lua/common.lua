#!lua
-- What every script begins with. The header above, without flags, makes the server refuse a script before its first line runs when it is
-- a replica, when its memory is full, or when it cannot persist; that is wanted for reads too, for a replica would answer old state.
--
-- A namespace is kept in keys that all begin with the hash tag {namespace}, so that Redis Cluster keeps them in one slot:
--   {ns}:meta   the marker: a string that says that the namespace is ours, and in which format
--   {ns}:index  a sorted set with the name of every key, all with score 0, so that it is ordered by bytes
--   {ns}:k:NAME a hash a key: i (incarnation), c (count), v (value)
-- Marker and index exist exactly while the namespace has keys, so that an empty one leaves nothing behind.
--
-- KEYS[1] is the marker, KEYS[2] the index, the others are keys of the namespace. ARGV[1] is the value of the marker, ARGV[2] the length
-- of what precedes the name in a key. Redis takes nothing back when a script fails, so everything is read and checked before the
-- first write, and no error leaves a script: `guarded` turns it into an answer that says whether anything had been written.

local MARKER, SKIP = ARGV[1], tonumber(ARGV[2])
local LARGEST = '9223372036854775807'

-- Stops with an answer that is no result.
local function stop(...)
  error({ answer = { ... } })
end

-- The reply of a command, unless what the key holds is of another type.
local function typed(n, command, ...)
  local reply = redis.pcall(command, KEYS[n], ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, '^%-?WRONGTYPE') then
      stop('corrupt', n, 'a value of another type')
    end
    error(reply.err)
  end
  return reply
end

-- Whether this is a number from 1 to 2^63 - 1 in canonical form. Lua's own numbers are doubles, so it stays a string.
local function is_half(text)
  return text and #text <= 19 and string.find(text, '^[1-9]%d*$') and (#text < 19 or text <= LARGEST)
end

-- Checks that marker and index are ours. Returns whether the namespace is empty.
local function check_namespace()
  local marker = typed(1, 'GET')
  local size = typed(2, 'ZCARD')
  if marker and marker ~= MARKER then
    stop('format', marker)
  end
  if marker and size == 0 then
    stop('corrupt', 2, 'nothing, although the namespace has keys')
  end
  if not marker and size > 0 then
    stop('corrupt', 1, 'nothing, although the namespace has keys')
  end
  return not marker
end

local wrote = 0

-- Runs `main`. An error that is no answer says whether a write came before it.
local function guarded(main)
  local ok, answer = pcall(main)
  if ok then
    return answer
  end
  if type(answer) == 'table' and answer.answer then
    return answer.answer
  end
  if type(answer) == 'table' then
    answer = answer.err
  end
  return { 'failed', wrote, tostring(answer) }
end
