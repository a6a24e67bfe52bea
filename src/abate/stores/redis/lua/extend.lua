-- Restart leases, given as pairs of key and token. Reply: the indexes of the leases that were lost.
local lease = tonumber(ARGV[2])
local lost = {}
for n = 3, #ARGV, 2 do
  local key, item = ARGV[n], look_up(ARGV[n])
  if item and held(item) and item.token == ARGV[n + 1] then
    remove_priority(key, item)
    item.due = now + lease
    redis.call('ZADD', LEASED, exact(item.due), item.sequence .. key)
    enter(key, item)
    remember()
  else
    lost[#lost + 1] = (n - 3) / 2
  end
end
return lost
