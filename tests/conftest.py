"""What all tests share: hypothesis without a deadline, for a deadline would be an assertion on timing."""

from hypothesis import settings

settings.register_profile("tinyshard", deadline=None)
settings.load_profile("tinyshard")
