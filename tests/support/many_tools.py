"""An MCP server with sixty long tools: `python many_tools.py`, over standard input and output."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = [
    {
        "name": f"tool_{number}",
        "description": f"Do thing number {number}. " + "The description is long. " * 30,
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 200}}},
    }
    for number in range(60)
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "many", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    return {"tools": TOOLS} if method == "tools/list" else {}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            result = answer(asked["method"], asked.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
