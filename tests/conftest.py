"""What every test relies on."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from bb.redaction import forget_secrets

# a slow or busy machine is no fault of the code
settings.register_profile("bb", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("bb")


@pytest.fixture(autouse=True)
def no_secrets() -> Iterator[None]:
    """Secrets are registered for the whole process; those of one test must not blank out words of the next."""
    yield
    forget_secrets()
