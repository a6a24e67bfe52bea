-- The rules of abate.stores.fleet.shelter_rules, function by function.
local NEVER = -math.huge

local function storm(known, member)
  known.state, known.prober, known.turn = 'storm', member, now + PROBE_TURN
end

local function during_outage(known, report, member, counts)
  if report.answered > report.failed then
    local first = math.max(FIRST_LIMIT, counts.members * FIRST_LIMIT_SHARE)
    known.state, known.limit, known.base, known.grown = 'recovering', first, first, now
    known.closed_until = NEVER
  elseif now >= known.turn and report.state ~= 'calm' then
    storm(known, member)
  end
end

local function recovering(known, report, member, counts)
  if report.seen == 'bad' and counts.bad > counts.good then return storm(known, member) end
  local overloaded = report.failed > MAX_FAILURE_RATIO * (report.answered + report.failed)
  if now >= known.grown + GROWTH_INTERVAL then
    local base = overloaded and math.max(FIRST_LIMIT, known.limit / 2) or known.limit
    known.limit, known.base, known.grown = base, base, now
  end
  local growth = known.base < counts.members and LIMIT_GROWTH or SLOW_GROWTH
  if not overloaded then known.limit = math.min(known.limit + report.answered, known.base * growth) end
  if known.limit >= CALM_LIMIT * counts.members then
    known.state, known.prober, known.turn, known.limit, known.base, known.grown = 'calm', '', NEVER, 0, 0, NEVER
  end
end

local function current(known)
  if known.state ~= 'calm' and now >= math.max(known.turn, known.grown) + OUTAGE_TIMEOUT then
    known.state, known.prober, known.turn, known.limit, known.base, known.grown = 'calm', '', NEVER, 0, 0, NEVER
    known.closed_until = NEVER
  end
  if known.state == 'recovering' then  -- a limit of 0 would never grow
    known.limit, known.base = math.max(1, known.limit), math.max(1, known.base)
  end
  known.closed_until = math.min(known.closed_until, now + MAX_PAUSE)
  known.turn, known.grown = math.min(known.turn, now + PROBE_TURN), math.min(known.grown, now)
end

local function update(known, report, member, counts)
  current(known)
  if known.state == 'calm' then
    if counts.bad > counts.good and report.seen == 'bad' then storm(known, member) end
  elseif known.state == 'storm' then
    during_outage(known, report, member, counts)
  else
    recovering(known, report, member, counts)
  end
  if known.state == 'storm' and report.hint_left > 0 then
    known.closed_until = math.max(known.closed_until, now + math.min(report.hint_left, MAX_PAUSE))
  end
end

-- Return the state, the seconds for which nothing is sent, whether this member probes, and its limit.
local function advice(known, member, counts)
  local pause = exact(math.max(0, known.closed_until - now))
  if known.state == 'calm' then return known.state, pause, 0, exact(math.huge) end
  if known.state == 'storm' then return known.state, pause, known.prober == member and 1 or 0, '0' end
  local each = known.limit / counts.members
  if each < 1 then
    each = (counts.place() + math.floor(now / GROWTH_INTERVAL)) % counts.members < known.limit and 1 or 0
  end
  return known.state, pause, 0, exact(each)
end
