from __future__ import annotations

from collections.abc import Iterator

import pytest

from hypaware.home import Home
from tests.support.receiver import Gateway, Server, served


@pytest.fixture
def server(home: Home) -> Iterator[Server]:
    with served(home) as running:
        yield running


@pytest.fixture
def gateway(server: Server) -> Gateway:
    return server.enrolled()
