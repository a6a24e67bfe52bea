"""What the tests of deciding share."""

from hypothesis import settings

# a slow machine is no failure
settings.register_profile("abate", deadline=None)
settings.load_profile("abate")
