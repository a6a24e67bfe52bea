"""For all tests."""

from hypothesis import settings

# how long an example takes is the machine's business: a timed assertion is a flaky test
settings.register_profile("untimed", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("untimed")
