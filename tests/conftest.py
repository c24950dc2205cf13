"""What every test relies on."""

import importlib
import pkgutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import bb
from bb.redaction import forget_secrets

# a slow or busy machine is no fault of the code
settings.register_profile("bb", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
# a change is judged by what it does, not by what chance finds this time; `--hypothesis-profile bb` looks for new cases
settings.register_profile("same", settings.get_profile("bb"), derandomize=True)
settings.load_profile("same")
# Hypothesis tries the literals of all code that is loaded: let that be the same, whatever else runs in a process
for module in pkgutil.walk_packages(bb.__path__, "bb."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

# a shell starts what runs in the background with interrupts ignored, and so would every process the tests start and interrupt
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_secrets() -> Iterator[None]:
    """Secrets are registered for the whole process; those of one test must not blank out words of the next."""
    yield
    forget_secrets()
