-- The engine's clock decides; a caller in virtual time sends its own instant along.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1e6
end

-- Every digit of a number: what Lua would write by itself has fourteen.
local function exact(number)
  return string.format('%.17g', number)
end
