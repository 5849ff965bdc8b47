"""Send many small batches to a server: `python -m bench.delivery_load URL TOKEN CONNECTIONS BATCHES ROWS`.

Each connection acts as one machine and sends its batches one after the other, each with the range that it covers.
Bodies are made before the clock starts and reused: the server validates every row each time.
Prints speed and latencies as JSON.
"""

from __future__ import annotations

import gc
import http.client
import json
import sys
import threading
import time
from urllib.parse import urlsplit

import orjson

from bench.delivery_floor import as_delivered

_DISTINCT_ROWS = 2_000
_LIFE = "0123456789abcdef0123456789abcdef"


class Machine:
    def __init__(self, url: str, token: str, number: int, rows: int) -> None:
        place = urlsplit(url)
        self.latencies: list[float] = []
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port)
        self._rows = rows
        self._last = 0
        name = f"gw-{number:016x}"
        bodies = max(1, _DISTINCT_ROWS // rows)
        self._bodies = [_body(name, (number * bodies + place) * rows, rows) for place in range(bodies)]
        self._headers = {
            "Content-Type": "application/x-ndjson",
            "Authorization": f"Bearer {self._enrolled(name, token)}",
            "X-Hyp-Gateway": name,
            "X-Hyp-Incarnation": _LIFE,
            "X-Hyp-Source": "claude",
        }

    def send(self, batches: int) -> None:
        for place in range(batches):
            after, self._last = self._last, self._last + self._rows
            told = {
                "X-Hyp-Batch-Id": f"batch-{after}",
                "X-Hyp-Seq-Range": f"{after}-{self._last}",
                "X-Hyp-Acked-To": str(after),
            }
            began = time.perf_counter()
            self._ask("/v1/ingest/proxy", self._bodies[place % len(self._bodies)], {**self._headers, **told}, 202)
            self.latencies.append(time.perf_counter() - began)

    def _enrolled(self, name: str, token: str) -> str:
        asked = {"bootstrap_token": token, "gateway_id": name, "gateway_secret": f"the secret of {name}"}
        return str(json.loads(self._ask("/v1/identity/bootstrap", orjson.dumps(asked), {}, 200))["jwt"])

    def _ask(self, path: str, body: bytes, headers: dict[str, str], wanted: int) -> bytes:
        self._connection.request("POST", path, body, headers)
        answer = self._connection.getresponse()
        told = answer.read()
        if answer.status != wanted:
            raise SystemExit(f"{path} was answered with {answer.status} {told!r}: not a measurement")
        return told


def _body(gateway_id: str, first: int, rows: int) -> bytes:
    made = ({**as_delivered(number), "gateway_id": gateway_id} for number in range(first, first + rows))
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in made)


def main(url: str, token: str, connections: int, batches: int, rows: int) -> None:
    machines = [Machine(url, token, number, rows) for number in range(connections)]
    gc.freeze()
    for machine in machines:
        machine.send(1)
        machine.latencies.clear()
    threads = [threading.Thread(target=machine.send, args=(batches // connections,)) for machine in machines]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - began
    latencies = sorted(latency for machine in machines for latency in machine.latencies)
    if len(latencies) != batches // connections * connections:
        raise SystemExit("not all batches were sent: not a measurement")
    told = {"batches": len(latencies), "seconds": spent}
    print(
        json.dumps(
            {**told, **{name: latencies[int(len(latencies) * at)] for name, at in (("p50", 0.5), ("p99", 0.99))}}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
