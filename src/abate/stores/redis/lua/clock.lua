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

-- A number that was read, if it is one that we would write: another program may have written anything.
local function sound(text)
  local number = tonumber(text or nil)
  return number and number > -1e17 and number < 1e17 and number or nil
end
