"""`hyp server status`: machines, lag, rows per day, what waits for a flush, and the bytes stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypaware.home import Home
from hypaware.server.status import read_server_status
from tests.support import light_home
from tests.support.command import Hyp
from tests.support.receiver import served
from tests.support.rows import DATASET


def test_it_shows_what_each_machine_has_delivered_and_how_old_its_oldest_uncommitted_batch_is(home: Home) -> None:
    with served(home) as server:
        first, second = server.enrolled("gw-1"), server.enrolled("gw-2")
        assert first.deliver(0, 10).status == 202
        assert first.deliver(0, 10).status == 202
        assert second.deliver(0, 5).status == 202
        light_home.flush(home)
        assert first.deliver(10, 40).status == 202
    later = datetime.now(UTC) + timedelta(hours=2)
    found = read_server_status(home, days=2, now=later)
    today = datetime.now(UTC).date().isoformat()
    by_machine = {each.gateway_id: each for each in found.machines}
    assert by_machine["gw-1"].host == "gw-1.local"
    assert sum(by_machine["gw-1"].rows_by_day.values()) == 40, "a repeated batch counts once"
    assert by_machine["gw-1"].uncommitted_rows == 30
    assert 7_200 <= by_machine["gw-1"].lag_seconds == found.uncommitted["lag_seconds"]
    assert (by_machine["gw-2"].uncommitted_rows, by_machine["gw-2"].lag_seconds) == (0, 0.0)
    assert (found.uncommitted["segments"], found.uncommitted["rows"]) == (1, 30)
    assert sum(day["rows"] for day in found.days) == 45
    assert {day["day"] for day in found.days} <= {today, (datetime.now(UTC) - timedelta(days=1)).date().isoformat()}
    (table,) = [each for each in found.storage if each.dataset == DATASET]
    assert table.rows == 15
    assert 0 < table.live_bytes < table.stored_bytes < found.stored_bytes
    light_home.flush(home)
    assert read_server_status(home).uncommitted == {"segments": 0, "rows": 0, "bytes": 0, "lag_seconds": 0.0}


def test_the_command_prints_it_for_people_and_programs_and_creates_no_home(home: Home) -> None:
    hyp = Hyp(home.root)
    refused = hyp.run("server", "status", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (3, "no_home")
    assert not home.root.exists()
    with served(home) as server:
        assert server.enrolled("gw-1").deliver(0, 10).status == 202
    found = hyp.ok("server", "status", "--days", "30")
    assert [machine["gateway_id"] for machine in found["machines"]] == ["gw-1"]
    assert found["uncommitted"]["rows"] == 10
    told = hyp.run("server", "status").out
    assert "gw-1" in told
    assert "waiting for a flush: 10 rows in 1 batch" in told
