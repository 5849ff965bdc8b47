from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.engine import client
from hypaware.home import Home
from tests.support.daemon_home import DaemonHome
from tests.support.delivery_home import DeliveryHome


@pytest.fixture
def daemon(home: Home, tmp_path: Path) -> Iterator[DaemonHome]:
    found = DaemonHome(DeliveryHome(home), tmp_path)
    found.deliveries.declare(archive=tmp_path / "archive")
    yield found
    client.stop_engine(home)
