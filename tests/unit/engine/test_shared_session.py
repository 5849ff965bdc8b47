"""What a job that failed in the JVM says if the database or the bucket of a shared lake is to blame."""

from __future__ import annotations

import pytest

from hypaware.config.shared_lake import SharedLake
from hypaware.engine.shared_session import explain_storage_error
from hypaware.errors import LakeError, Retryable

SHARED = SharedLake("postgresql://db.example:5432/lake", "s3://bucket/prefix")
_ICEBERG = """An error occurred while calling o149.tableExists.
: org.apache.iceberg.jdbc.UncheckedSQLException: Failed to get table hypaware.ai_gateway_messages from catalog hyp
\tat org.apache.iceberg.jdbc.JdbcUtil.loadTable(JdbcUtil.java:600)
Caused by: org.postgresql.util.PSQLException: {}
\tat org.postgresql.core.v3.QueryExecutorImpl.receiveErrorResponse(QueryExecutorImpl.java:2733)
"""
_S3 = """An error occurred while calling o12.commitTransaction.
: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Connection refused
\tat software.amazon.awssdk.core.exception.SdkClientException$BuilderImpl.build(SdkClientException.java:130)
"""


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        (_ICEBERG.format("FATAL: terminating connection"), "catalog_unavailable", ("lake.catalog", "terminating")),
        (_S3, "warehouse_unavailable", ("lake.warehouse", "s3://bucket/prefix", "Connection refused")),
    ],
)
def test_a_failure_of_the_database_or_the_bucket_names_its_setting_and_can_be_repeated(
    text: str, kind: str, named: tuple[str, ...]
) -> None:
    found = explain_storage_error(SHARED, RuntimeError(text))
    assert isinstance(found, Retryable)
    assert found.kind == kind
    assert all(word in found.message for word in named), found.message
    assert "\n" not in found.message


def test_a_lost_lease_is_no_failure_of_the_database() -> None:
    error = RuntimeError(_ICEBERG.format("ERROR: only the machine that holds the lease on the lake hyp may change it"))
    found = explain_storage_error(SHARED, error)
    assert isinstance(found, LakeError)
    assert found.kind == "lease_lost"


def test_another_failure_is_not_blamed_on_the_storage() -> None:
    assert explain_storage_error(SHARED, RuntimeError("java.lang.IllegalStateException: no")) is None
