-- Record that a member is active, delete expired members, and return the number of members.
local function came(members, member)
  redis.call('ZREMRANGEBYSCORE', members, '-inf', exact(now - MEMBER_TIMEOUT))
  redis.call('ZREMRANGEBYSCORE', members, '(' .. exact(now + MEMBER_TIMEOUT), '+inf')
  redis.call('ZADD', members, exact(now), member)
  redis.call('EXPIRE', members, KEPT_FOR)
  return redis.call('ZCARD', members)
end
