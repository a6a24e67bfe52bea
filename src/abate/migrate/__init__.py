"""Rewrites code that uses other libraries for retries: tenacity, backoff, stamina, retrying, and urllib3's ``Retry``.

* A file is parsed, never imported or run.
* What is rewritten behaves as before, or the change is said; what has no equivalent is left as it is, and listed.
* Nothing is written but by `SourceFile.write`.
"""
