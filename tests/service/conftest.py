"""One booted machine for all tests that need it: they are of one xdist group, and so run in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.booted import MAIN, Machine, why_not


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A booted machine with an app at /opt/shop, an agent in the workers' group, and a stranger."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"NOT SHOWN HERE, the service was not tried under a real systemd: {reason}")
    with Machine() as made:
        made.write("/opt/shop/shop.py", Path(__file__).with_name("shop.py").read_text())
        made.write("/etc/settled/main.env", "PYTHONPATH=/opt/shop\n")
        made.write("/etc/settled/main.stripe", "sk_test_1234\n", 0o600)
        made.write(f"/etc/systemd/system/{MAIN}.d/secret.conf", "[Service]\nLoadCredential=stripe:/etc/settled/%i.stripe\n")
        made.must("useradd", "-m", "agent")
        made.must("useradd", "-m", "stranger")
        yield made
