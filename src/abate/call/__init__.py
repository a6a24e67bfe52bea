"""One call: the policy, the machine that runs it, and its drivers for threads, tasks and blocks.

What every call can rely on:

* at most `attempts` attempts, the first one included, and none after the deadline;
* never a sleep past the deadline, and never a return before the server's hint;
* at most one deposit, and a withdrawal that is not used is refunded;
* the original error is raised, with a report; a cancellation passes at once;
* an error that a policy inside gave up on is not retried again;
* calls share nothing but the budget and the gate.
"""

from abate.call.block import Attempt, Attempts
from abate.call.describe import WorstCase
from abate.call.giveup import report
from abate.call.load import load_policies
from abate.call.machine import Call, Send, Stop, Wait
from abate.call.policy import Policy

__all__ = [
    "Attempt",
    "Attempts",
    "Call",
    "Policy",
    "Send",
    "Stop",
    "Wait",
    "WorstCase",
    "load_policies",
    "report",
]
