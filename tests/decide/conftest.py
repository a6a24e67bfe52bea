"""Fixtures of the decide tests."""
