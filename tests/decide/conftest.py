"""What the tests of deciding share."""
