-- Use the server's clock, unless a caller in virtual time sends its own instant.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1e6
end

-- Format a number with all its digits: Lua's default is fourteen.
local function exact(number)
  return string.format('%.17g', number)
end

-- Parse a stored number; nil if it is invalid or out of range, since another program may have written anything.
local function sound(text)
  local number = tonumber(text or nil)
  return number and number > -1e17 and number < 1e17 and number or nil
end
