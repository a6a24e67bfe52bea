"""What pyright must refuse; an expected error that does not come is an error here. For mypy public.py does the same."""

# mypy: ignore-errors
# pyright: reportUnnecessaryTypeIgnoreComment=true

import abate

abate.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
abate.observe.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
abate.clients.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
abate.work.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
abate.work.Message("42", body=5)  # pyright: ignore[reportArgumentType]
abate.observe.LoggingSink(nonsense=1)  # pyright: ignore[reportCallIssue]

abate.Policy(on=OSError, max_attemps=3)  # pyright: ignore[reportCallIssue]
abate.Policy(OSError)  # pyright: ignore[reportCallIssue]
abate.controller(worker=3)  # pyright: ignore[reportCallIssue]
abate.consumer(max_recieves=3)  # pyright: ignore[reportCallIssue]
abate.consumer(breaker=3)  # pyright: ignore[reportArgumentType]
abate.CircuitBreaker(threshold=0.5)  # pyright: ignore[reportCallIssue]
