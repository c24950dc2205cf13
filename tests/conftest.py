"""What every test relies on."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from bb.redaction import forget_secrets

# a slow or busy machine is no fault of the code
settings.register_profile("bb", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
# a change is judged by what it does, not by what chance finds this time; `--hypothesis-profile bb` looks for new cases
settings.register_profile("same", settings.get_profile("bb"), derandomize=True)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def no_secrets() -> Iterator[None]:
    """Secrets are registered for the whole process; those of one test must not blank out words of the next."""
    yield
    forget_secrets()
