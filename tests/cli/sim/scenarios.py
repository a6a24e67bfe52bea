"""Scenarios for the tests of `abate sim`, and words that make a tuning short."""

OUTAGE = """
about = "An outage of two seconds. And what becomes of it."

[run]
horizon = 20.0
seeds = 3

[clients]
count = 50

[policy]
max_attempts = 3

[services.api]
workers = 10
service_time = 0.05

[[triggers]]
kind = "error"
at = 5.0
for = 2.0
"""
HERD = """
[run]
horizon = 10.0
seeds = 3

[clients]
count = 50
arrivals = "once"

[policy]
max_attempts = 3

[services.api]
workers = 10
service_time = 0.05

[[triggers]]
kind = "error"
at = 0.0
for = 0.01

[variants.none.policy.backoff]
jitter = "none"

[variants.full.policy.backoff]
jitter = "full"
"""
FRAGILE = """
[run]
horizon = 5.0
seeds = 1

[clients]
count = 280

[policy]
max_attempts = 2
attempt_timeout = 1.0
budget = { ratio = 1.0, reserve = 1000, funded_by = "request" }

[services.db]
workers = 30
service_time = 0.1
"""

NARROW = [
    "--max-attempts",
    "1:3",
    "--base",
    "0.2",
    "--cap",
    "5",
    "--jitter",
    "full",
    "--ratio",
    "0.2",
    "--reserve",
    "0:20",
]
QUICK = [*NARROW, "--seeds", 2, "--samples", 4]
