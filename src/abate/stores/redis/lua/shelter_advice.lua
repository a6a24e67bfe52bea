-- Answer a ShelterReport. Reply: state, seconds of pause, probe, limit, number of members.
local MEMBERS, GOOD, BAD, SHELTER = unpack(KEYS)
local member = ARGV[2]
local report = {
  state = ARGV[3], seen = ARGV[4],
  answered = tonumber(ARGV[5]), failed = tonumber(ARGV[6]), hint_left = tonumber(ARGV[7]),
}

local members = came(MEMBERS, member)
local function reports(seen, key)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', exact(now - MEMBER_TIMEOUT))
  redis.call('ZREMRANGEBYSCORE', key, '(' .. exact(now + MEMBER_TIMEOUT), '+inf')
  if report.seen == seen then
    redis.call('ZADD', key, exact(now), member)
    redis.call('EXPIRE', key, KEPT_FOR)
  else
    redis.call('ZREM', key, member)
  end
  return redis.call('ZCOUNT', key, '(' .. exact(now - REPORT_VALID), '+inf')
end
local counts = {members = members, good = reports('good', GOOD), bad = reports('bad', BAD)}

-- Return the number of members before this one; needed only if the limit is below one per member.
function counts.place()
  local before = 0
  for _, other in ipairs(redis.call('ZRANGE', MEMBERS, 0, -1)) do
    if other < member then before = before + 1 end
  end
  return before
end

local found = redis.call('HMGET', SHELTER, 'state', 'closed_until', 'prober', 'turn', 'limit', 'base', 'grown')
local function noted(place, otherwise)
  return sound(found[place]) or otherwise
end
local STATES = {calm = 'calm', storm = 'storm', recovering = 'recovering'}
local known = {
  state = STATES[found[1] or 'calm'] or 'calm', closed_until = noted(2, NEVER), prober = found[3] or '', turn = noted(4, NEVER),
  limit = noted(5, 0), base = noted(6, 0), grown = noted(7, NEVER),
}

update(known, report, member, counts)

redis.call('DEL', SHELTER)
if known.state ~= 'calm' then
  for name, value in pairs(known) do
    if value ~= NEVER then
      redis.call('HSET', SHELTER, name, type(value) == 'number' and exact(value) or value)
    end
  end
  redis.call('EXPIRE', SHELTER, math.ceil(math.max(0, known.closed_until - now)) + KEPT_FOR)
end

local state, pause, probe, limit = advice(known, member, counts)
return {state, pause, probe, limit, members}
