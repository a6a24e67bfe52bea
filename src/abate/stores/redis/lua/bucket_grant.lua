-- Answer a BucketRequest (see abate.stores.fleet.grant_rules.bucket_share). Reply: the member's share, and the number
-- of members. KEYS[1] holds, by member, "seen wanted part".
local wanted, member = tonumber(ARGV[2]), ARGV[3]
local found = redis.call('HGETALL', KEYS[1])
local everybody, members, parts, total = {wanted}, 1, 0, wanted
for n = 1, #found, 2 do
  local seen, other, part = string.match(found[n + 1], '^(%S+) (%S+) (%S+)$')
  seen, other, part = sound(seen), sound(other), sound(part)
  local is_one = seen and other and part and other >= 0 and other <= 1e15 and part >= 0 and part <= 1
  if not is_one or seen <= now - MEMBER_TIMEOUT or seen > now + MEMBER_TIMEOUT then
    redis.call('HDEL', KEYS[1], found[n])
  elseif found[n] ~= member then
    members = members + 1
    everybody[members] = other
    parts, total = parts + part, total + other
  end
end
local least = IDLE_DEMAND * total / members
if least == 0 then least = 1 end
local whole = 0
for _, one in ipairs(everybody) do whole = whole + math.max(one, least) end
local part = math.max(0, math.min(math.max(wanted, least) / whole * (1 - NEWCOMERS_RESERVE), 1 - parts))
redis.call('HSET', KEYS[1], member, exact(now) .. ' ' .. exact(wanted) .. ' ' .. exact(part))
redis.call('EXPIRE', KEYS[1], KEPT_FOR)
return {exact(part), members}
