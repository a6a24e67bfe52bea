"""Read the retries of each library: one file per library."""
