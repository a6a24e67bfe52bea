-- Who has come lately, by when. A member has come; those who are gone are forgotten. The answer: how many there are.
local function came(members, member)
  redis.call('ZREMRANGEBYSCORE', members, '-inf', exact(now - GONE))
  redis.call('ZREMRANGEBYSCORE', members, '(' .. exact(now + GONE), '+inf')
  redis.call('ZADD', members, exact(now), member)
  redis.call('EXPIRE', members, KEPT_FOR)
  return redis.call('ZCARD', members)
end
