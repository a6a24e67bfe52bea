"""The rules: one file per family."""

from __future__ import annotations

from abate.audit.findings import Rule
from abate.audit.rules.bounds import no_cap, unbounded_attempts
from abate.audit.rules.budgets import default_retries, no_budget
from abate.audit.rules.databases import half_transaction, retry_without_rollback
from abate.audit.rules.exceptions import broad_except, cancellation_caught
from abate.audit.rules.http import client_error_retried, non_idempotent_retry, retry_after_ignored
from abate.audit.rules.jitter import fixed_wait, jitter_lost_at_cap, no_jitter, no_wait
from abate.audit.rules.layers import layers
from abate.audit.rules.periodic import same_second
from abate.audit.rules.queues import requeue_without_delay, unbounded_queue
from abate.audit.rules.timeouts import long_timeout, no_timeout, one_timeout

RULES: tuple[Rule, ...] = (
    layers,
    no_timeout,
    one_timeout,
    long_timeout,
    no_jitter,
    jitter_lost_at_cap,
    fixed_wait,
    no_wait,
    no_cap,
    unbounded_attempts,
    broad_except,
    cancellation_caught,
    non_idempotent_retry,
    client_error_retried,
    retry_after_ignored,
    retry_without_rollback,
    half_transaction,
    requeue_without_delay,
    unbounded_queue,
    same_second,
    no_budget,
    default_retries,
)
