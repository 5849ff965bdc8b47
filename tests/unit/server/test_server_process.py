"""`hyp server run` as a process: one per home, announced address, TLS, and a shutdown that loses nothing."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import trustme

from hypaware.home import Home
from hypaware.server import auth, batch_storage
from hypaware.spool import segments
from hypaware.status import processes
from tests.support.command import Hyp
from tests.support.processes import PATIENCE, eventually, open_umask, read_umask
from tests.support.receiver import LIMITS, Client, Gateway, enrol, messages, running, served, stored
from tests.support.rows import DATASET


def test_server_announces_its_address_and_ends_on_sigterm(home: Home) -> None:
    token, _ = auth.create_token(home)
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(home) as (url, process):
            assert url
            reported = json.loads((home.run / "server.json").read_bytes())
            assert reported == {"pid": process.pid, "listen": url}
            assert processes.inspect_server(home) == {"state": "running", "pid": process.pid, "listen": url}
            assert Client(url).ask("GET", "/readyz").status == 200
            assert enrol(url, token, "gw-1").deliver(0, 5).status == 202
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
            assert (process.returncode, out) == (0, b"")
            assert url.encode() in err
            assert b"Traceback" not in err
            assert not (home.run / "server.json").exists()
            assert processes.inspect_server(home) == {"state": "stopped"}
    assert stored(home) == messages(range(1, 6))


def test_files_of_a_server_are_private_whatever_the_umask_of_its_shell(home: Home) -> None:
    with open_umask(), running(home) as (url, process):
        assert url
        assert read_umask(process.pid) == 0o077


def test_home_has_one_server(home: Home) -> None:
    with running(home) as (url, process):
        assert url
        assert f"running as process {process.pid}, listening on {url}" in Hyp(home.root).run("status").out
        second = Hyp(home.root).run("server", "run", "--listen", "127.0.0.1:0")
        assert second.code == 3
        assert str(process.pid) in second.err


def test_a_server_does_not_start_with_a_state_that_it_would_not_use(home: Home) -> None:
    """Otherwise it would acknowledge batches into a ledger in its home, which nobody looks for there."""
    hyp = Hyp(home.root)
    assert hyp.run("config", "set", "lake.state", '{ uri = "postgresql://127.0.0.1:1/hyp" }').code == 0
    refused = hyp.run("server", "run", "--listen", "127.0.0.1:0", "--no-flush")
    assert refused.code == 3
    assert "lake.state" in refused.err
    assert not home.state.exists()


def test_address_in_use_is_reported(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = Hyp(home.root).run("server", "run", "--listen", f"127.0.0.1:{port}", "--no-flush")
    assert refused.code == 3
    assert f"127.0.0.1:{port}" in refused.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "nowhere"],
        ["--listen", "127.0.0.1:99999"],
        ["--tls-cert", __file__],
        ["--tls-cert", __file__, "--tls-key", __file__],
    ],
)
def test_invalid_options_are_rejected(home: Home, arguments: list[str]) -> None:
    assert Hyp(home.root).run("server", "run", *arguments).code == 2


def test_server_warns_about_unencrypted_remote_access(home: Home) -> None:
    process = Hyp(home.root).start("server", "run", "--listen", "0.0.0.0:0", "--no-flush")
    assert process.stdout
    assert process.stdout.readline().startswith(b"listening on http://0.0.0.0:")
    process.terminate()
    assert b"without TLS" in process.communicate(timeout=PATIENCE)[1]
    with running(home) as (_, quiet):
        quiet.terminate()
        assert b"without TLS" not in quiet.communicate(timeout=PATIENCE)[1]


def test_server_supports_tls(home: Home, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    paths = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    process = Hyp(home.root).start("server", "run", "--listen", "127.0.0.1:0", "--no-flush", *paths)
    try:
        assert process.stdout
        url = process.stdout.readline().decode().removeprefix("listening on ").strip()
        assert url.startswith("https://")
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        connection = http.client.HTTPSConnection("127.0.0.1", urlsplit(url).port, context=trusting, timeout=PATIENCE)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_requests_in_progress_are_finished_on_shutdown(home: Home) -> None:
    token, _ = auth.create_token(home)
    with running(home) as (url, process):
        assert url
        gateway = enrol(url, token, "gw-1")
        body = gateway.rows(50)
        place = urlsplit(url)
        connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=PATIENCE)
        connection.putrequest("POST", "/v1/ingest/proxy")
        for name, value in {
            "Authorization": f"Bearer {gateway.jwt}",
            "Content-Type": "application/x-ndjson",
            "X-Hyp-Batch-Id": "b-1",
            "Content-Length": str(len(body)),
        }.items():
            connection.putheader(name, value)
        connection.endheaders(body[:1000])
        eventually(lambda: b"hyp_server_held_bytes 1000.0" in Client(url).ask("GET", "/metrics").body)
        process.terminate()
        eventually(lambda: _refuses(place.port or 0))
        connection.send(body[1000:])
        assert connection.getresponse().status == 202
        connection.close()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert stored(home) == messages(range(50))


def test_draining_server_accepts_no_new_batch(home: Home) -> None:
    with served(home) as server:
        gateway = server.enrolled()
        server.parts.draining = True
        answer = gateway.deliver(0, 5)
        assert (answer.status, answer.error) == (503, "draining")
        assert int(answer.headers["retry-after"]) >= 1
        assert server.client.ask("GET", "/readyz").status == 503
        assert server.client.ask("GET", "/healthz").status == 200
    assert stored(home) == []


def test_batches_are_stored_even_if_the_drain_times_out(home: Home) -> None:
    with ExitStack() as senders, served(home, replace(LIMITS, drain_seconds=0.0)) as server:
        gateways = [server.enrolled(f"gw-{number}") for number in range(3)]
        writing = ExitStack()
        writing.enter_context(server.parts.store.transaction())
        close = server.parts.receiver.close

        def close_when_the_loop_is_gone() -> None:
            writing.close()
            close()

        server.parts.receiver.close = close_when_the_loop_is_gone  # type: ignore[method-assign]
        pool = senders.enter_context(ThreadPoolExecutor(len(gateways)))
        for gateway in gateways:
            pool.submit(gateway.deliver, 0, 5)
        eventually(
            lambda: (
                len(list(batch_storage.incoming_folder(segments.spool_folder(home, DATASET)).iterdir()))
                == len(gateways)
            )
        )
    assert sorted(stored(home)) == sorted(len(gateways) * messages(range(1, 6)))


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_metrics_count_requests_and_name_no_gateway(home: Home) -> None:
    with served(home) as server:
        gateway = server.enrolled("gw-private-name")
        gateway.deliver(0, 5, "source-private-name")
        gateway.deliver(0, 5, "source-private-name")
        gateway.deliver(2, 7, "source-private-name")
        gateway.send("b-private-name", b"not JSON")
        gateway.landed("b-private-name")
        answer = server.client.ask("GET", "/metrics")
    counted = answer.body.decode()

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        "hyp_server_rows_total 5.0",
        'hyp_server_batches_total{outcome="stored"} 1.0',
        'hyp_server_batches_total{outcome="duplicate"} 1.0',
        'hyp_server_batches_total{outcome="overlap"} 1.0',
        'hyp_server_batches_total{outcome="refused"} 1.0',
        'hyp_server_requests_total{route="/v1/ingest/{signal}",status="202"} 2.0',
    ):
        assert line in counted
    assert "private" not in counted
    assert "message" not in counted


def test_importing_the_server_does_not_import_spark() -> None:
    modules = sorted(path.stem for path in Path(auth.__file__).parent.glob("*.py") if path.stem != "__init__")
    script = "import sys\n" + "".join(f"import hypaware.server.{name}\n" for name in modules)
    script += "print(*({'pyspark', 'py4j'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_receiving_a_batch_does_not_import_spark(home: Home) -> None:
    """HYP_ENGINE=inline, with which commands run Spark in their own process, does not apply to the server."""
    token, _ = auth.create_token(home)
    process = Hyp(home.root, inline=True).start("server", "run", "--listen", "127.0.0.1:0", "--no-flush")
    try:
        assert process.stdout
        url = process.stdout.readline().decode().removeprefix("listening on ").strip()
        gateway: Gateway = enrol(url, token, "gw-1")
        assert gateway.deliver(0, 5).status == 202
        assert not [found for found in psutil.Process(process.pid).memory_maps() if "pyspark" in found.path]
        assert psutil.Process(process.pid).children() == []
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.mark.hazard(33)
def test_batch_of_a_disconnected_client_is_stored(home: Home) -> None:
    with served(home) as server:
        gateway = server.enrolled()
        body = gateway.rows(5)
        place = urlsplit(server.url)
        with socket.create_connection(("127.0.0.1", place.port or 0), timeout=PATIENCE) as wire:
            head = (
                f"POST /v1/ingest/proxy HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.jwt}\r\n"
                f"Content-Type: application/x-ndjson\r\nX-Hyp-Batch-Id: b-1\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            wire.sendall(head.encode() + body)
            eventually(lambda: stored(home))
        assert gateway.send("b-1", body).json["stored"] == 0
    assert stored(home) == messages(range(5))
