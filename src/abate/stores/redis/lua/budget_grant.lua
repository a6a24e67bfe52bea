-- Answer a BudgetRequest (see abate.stores.fleet.grant_rules.budget_grant). Reply: the granted withdrawals, and the
-- number of members.
local earned, per, reserved, share = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local deposits, want, held = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local spent, member = tonumber(ARGV[10]), ARGV[11]
local members = came(KEYS[2], member)
local paid, withdrawn = settle_up(held)
local left = paid_for(paid + deposits, withdrawn + spent, earned, per, reserved, share)
local granted = math.min(want, math.ceil(math.max(0, math.min(1e9, left)) / members))
count(deposits, spent + granted)
return {granted, members}
