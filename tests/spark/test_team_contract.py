"""What a lake of its own promises, a shared lake promises too: cheap tests of its suites, over PostgreSQL and S3.

PyIceberg stands in for Spark, as in the suites themselves. Tests that look at local files of a lake, or fork, are not
among these.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.testing.fault_injection import register_kind
from hypaware.testing.folder_sink import FOLDER
from tests.support.retention_cases import RetentionSite
from tests.support.shared_lake import SharedLakeServers
from tests.unit.lake import test_flush as of_flushes
from tests.unit.lake import test_settlements as of_settlements
from tests.unit.maintain import test_purge as of_purges
from tests.unit.maintain import test_retention_plan as of_retention


@pytest.fixture
def home(servers: SharedLakeServers) -> Iterator[Home]:
    yield Home(servers.machine("first").home)
    catalog._idle.connection = None


@pytest.fixture
def site(home: Home) -> Iterator[RetentionSite]:
    with register_kind(FOLDER):
        yield RetentionSite(home)


CONTRACT = (
    of_flushes.test_a_committed_row_carries_its_sequence_source_row_id_and_flush,
    of_flushes.test_a_flush_of_only_duplicates_commits_nothing_and_still_finishes,
    of_flushes.test_of_two_rows_with_the_same_key_in_one_flush_the_lower_sequence_is_kept,
    of_flushes.test_a_large_spool_takes_several_bounded_flushes_that_do_not_split_segments,
    of_flushes.test_a_key_index_that_is_behind_catches_up_from_the_lake,
    of_flushes.test_a_row_of_another_flush_in_the_same_range_is_not_mistaken_for_ours,
    of_flushes.test_the_floor_stays_after_all_rows_are_removed,
    of_flushes.test_a_committed_flush_is_recognised_by_its_rows_after_its_snapshot_expired,
    of_settlements.test_a_transcript_settles_the_rows_that_the_gateway_recorded_first,
    of_settlements.test_live_rows_of_an_imported_conversation_are_dropped,
    of_settlements.test_a_settled_row_moves_to_the_day_of_its_native_row,
    of_retention.test_whole_days_are_dropped_and_the_first_day_kept_stays,
    of_retention.test_rows_are_held_until_every_sink_has_them,
    of_purges.test_only_the_selected_rows_are_purged,
    of_purges.test_other_rows_of_a_rewritten_file_are_unchanged,
    of_purges.test_allow_reimport_lets_an_import_restore_all_rows,
)
globals().update({test.__name__: test for test in CONTRACT})
