"""Reads Python code and finds retries that would hurt in an outage. The code is parsed, never imported or run.

Files become modules (`module_index`), modules a program whose names are resolved (`names`, `program`). Readers turn the
retries of each library into one description (`retries`), and rules find faults in that.
"""
