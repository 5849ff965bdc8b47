"""A stand-in for the model provider: streams the same answer to every question, in the Anthropic format."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "claude-opus-5-5"
_ANSWER = ("Two things: ", "the report still adds up currencies, ", "and the customers have not been informed yet.")


@contextmanager
def run_provider() -> Iterator[str]:
    """Run the provider and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _RequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("request-id", "req_011CDemo")
        self.send_header("connection", "close")
        self.end_headers()
        for name, fields in _events():
            self.wfile.write(f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


def _events() -> Iterator[tuple[str, dict[str, Any]]]:
    usage = {"input_tokens": 31, "cache_read_input_tokens": 11208, "cache_creation_input_tokens": 0, "output_tokens": 1}
    message = {"id": "msg_01Demo", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    yield "message_start", {"message": {**message, "stop_reason": None, "usage": usage}}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    for text in _ANSWER:
        yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}
    yield "content_block_stop", {"index": 0}
    yield "message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 24}}
    yield "message_stop", {}
