"""Write one conversation line by line in the format of Claude Code 2.0.76 or 2.1.325.

Lines are assembled as text: building and encoding objects would take longer than the work that is measured.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from datetime import datetime, timedelta
from enum import Enum
from random import Random
from typing import NamedTuple

from bench.prose import Prose


class Style(Enum):
    OLD = "2.0.76"
    NEW = "2.1.325"


class Block(NamedTuple):
    kind: str
    content: str
    """The block, as JSON."""
    call: str = ""
    tool: str = ""
    path: str = ""


class Usage(NamedTuple):
    input: int
    cache_read: int
    cache_write: int
    output: int
    reasoning: int


_MODELS = {
    Style.OLD: ("claude-sonnet-4-5-20250929", "claude-haiku-4-5-20251001"),
    Style.NEW: ("claude-opus-5-5", "claude-sonnet-4-5-20250929"),
}
_TOOLS = ("Bash", "Bash", "Bash", "Read", "Read", "Edit", "Edit", "Grep")
# Bytes of a line without its text, and the average bytes a piece of text adds; the first guess of a scale uses them.
_BARE_LINE, _TEXT_PER_LINE = 880.0, 430.0


class Conversation:
    """The file of one session; counts the lines and bytes written."""

    def __init__(self, rng: Random, prose: Prose, style: Style, *, cwd: str, begin: datetime) -> None:
        self._rng = rng
        self._prose = prose
        self._style = style
        self.cwd = cwd
        self.now = begin
        self.session = self._uuid()
        self.lines: list[bytes] = []
        self.bytes = 0
        self.responses = 0
        self.tokens: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()
        self._model = rng.choice(_MODELS[style])
        self._branch = rng.choice(("main", "main", "fix/" + rng.choice(prose.words), "feature-" + prose.words[-1]))
        self._parent = "null"
        self._prompt = ""
        self._context = 11_000
        self._scale = 1.0
        first = {
            Style.OLD: f'{{"type":"summary","summary":"{prose.sentences(1)}","leafUuid":"{self._uuid()}"}}',
            Style.NEW: f'{{"type":"mode","mode":"normal","sessionId":"{self.session}"}}',
        }
        self._add(first[style])

    def turn(self, room: int, wanted: float) -> None:
        """Write a prompt and its responses: at most `room` lines of about `wanted` bytes on average."""
        self._scale = min(max((wanted - _BARE_LINE) / _TEXT_PER_LINE, 0.02), 40.0)
        last = len(self.lines) + room
        self._user_says()
        for _ in range(self._rng.randint(0, 24)):
            if len(self.lines) >= last:
                return
            blocks = self._blocks(self._rng.randint(1, 4) if self._rng.random() < 0.1 else 1)
            for call, uuid in self._assistant_says(blocks, last, "tool_use"):
                if len(self.lines) < last:
                    self._tool_answers(call, uuid)
        if len(self.lines) < last:
            self._assistant_says(self._blocks(0), last, "end_turn")

    def _blocks(self, calls: int) -> list[Block]:
        blocks = []
        if self._rng.random() < 0.25:
            signature = b64encode(self._rng.randbytes(150)).decode()
            thought = self._prose.sentences(self._size(4))
            blocks.append(Block("thinking", f'{{"type":"thinking","thinking":"{thought}","signature":"{signature}"}}'))
        if calls == 0 or self._rng.random() < 0.3:
            text = self._prose.sentences(self._size(6 if calls else 12))
            blocks.append(Block("text", f'{{"type":"text","text":"{text}"}}'))
        blocks.extend(self._call() for _ in range(calls))
        return blocks[:4]

    def _call(self) -> Block:
        tool, call = self._rng.choice(_TOOLS), f"toolu_01{self._token()}"
        path = f"{self.cwd}/src/{self._rng.choice(self._prose.words)}.py"
        match tool:
            case "Bash":
                told = self._prose.sentences(1)[:40].partition("\\")[0]
                arguments = f'"command":"cd {self.cwd} && make test 2>&1 | tail -20","description":"{told}"'
            case "Read":
                arguments = f'"file_path":"{path}"'
            case "Grep":
                arguments = (
                    f'"pattern":"{self._rng.choice(self._prose.words)}.*","path":"{path}","output_mode":"content"'
                )
            case _:
                old, new = self._prose.code(self._size(3)), self._prose.code(self._size(4))
                arguments = f'"file_path":"{path}","old_string":"{old}","new_string":"{new}","replace_all":false'
        content = (
            f'{{"type":"tool_use","id":"{call}","name":"{tool}","input":{{{arguments}}},"caller":{{"type":"direct"}}}}'
        )
        return Block("tool_use", content, call, tool, path)

    def _user_says(self) -> None:
        self._pass(5_000, 600_000)
        self._prompt = self._uuid()
        message = f'{{"role":"user","content":"{self._prose.sentences(self._size(5))}"}}'
        self._user(message, ',"permissionMode":"default","promptSource":"typed"' if self._style is Style.NEW else "")
        self.parts["text"] += 1

    def _tool_answers(self, call: Block, asked: str) -> None:
        self._pass(20, 4_000)
        failed = self._rng.random() < 0.03
        answer, told = self._result(call, failed)
        flag = ',"is_error":true' if failed else ',"is_error":false' if call.tool == "Bash" else ""
        message = (
            f'{{"role":"user","content":[{{"tool_use_id":"{call.call}","type":"tool_result",'
            f'"content":{answer}{flag}}}]}}'
        )
        more = f',"toolUseResult":{told}'
        if self._style is Style.NEW:
            more += f',"sourceToolAssistantUUID":"{asked}"'
        self._user(message, more)
        self.parts["tool_result"] += 1

    def _result(self, call: Block, failed: bool) -> tuple[str, str]:
        """Return a tool's result as the model sees it and as the client stores it."""
        if failed:
            why = f"{call.tool} failed: {self._prose.sentences(1)}"
            return f'"<tool_use_error>{why}</tool_use_error>"', f'"Error: {why}"'
        text = self._prose.code(self._size(7))
        match call.tool:
            case "Bash":
                return f'"{text}"', f'{{"stdout":"{text}","stderr":"","interrupted":false,"isImage":false}}'
            case "Read":
                kept = f'"filePath":"{call.path}","content":"{text}","numLines":9,"startLine":1,"totalLines":9'
                return f'"{text}"', f'{{"type":"text","file":{{{kept}}}}}'
            case "Grep":
                kept = f'"mode":"content","numFiles":0,"filenames":[],"content":"{text}","numLines":9'
                return f'[{{"type":"text","text":"{text}"}}]', f"{{{kept}}}"
            case _:
                kept = f'"filePath":"{call.path}","oldString":"{text}","newString":"","structuredPatch":[]'
                return f'"The file {call.path} has been updated."', f'{{{kept},"userModified":false}}'

    def _assistant_says(self, blocks: list[Block], last: int, stop: str) -> list[tuple[Block, str]]:
        """Write the lines of one API message, as many as fit; return its tool calls without a result."""
        blocks = blocks[: last - len(self.lines)]
        ids = f"msg_01{self._token()}", f"req_011C{self._token()}"
        usage = self._spend(thinks=blocks[0].kind == "thinking")
        waiting = []
        self._pass(900, 9_000)
        for number, block in enumerate(blocks, start=1):
            uuid = self._assistant(block, number, len(blocks), ids, usage, stop)
            left = len(blocks) - number
            if block.kind == "tool_use" and left and len(self.lines) + left < last and self._rng.random() < 0.2:
                # A fast tool returns while the model is still streaming.
                self._tool_answers(block, uuid)
            elif block.kind == "tool_use":
                waiting.append((block, uuid))
            self._pass(5, 700)
        self.responses += 1
        self.parts.update(_PART_TYPES[block.kind] for block in blocks)
        self.tokens.update(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
            reasoning_tokens=usage.reasoning,
        )
        return waiting

    def _spend(self, thinks: bool) -> Usage:
        bits = self._rng.getrandbits(32)
        written, output = 200 + (bits & 0xFFF), 12 + (bits >> 12 & 0x3FF)
        read, self._context = self._context, (self._context + written) % 180_000
        reasoning = output // 3 if thinks and self._style is Style.NEW else 0
        return Usage(1 + (bits >> 28), read, written, output, reasoning)

    def _user(self, message: str, more: str) -> None:
        uuid = self._uuid()
        if self._style is Style.OLD:
            line = (
                f'{self._head()},"type":"user","message":{message},"uuid":"{uuid}","timestamp":"{self._time()}"{more}}}'
            )
        else:
            line = (
                f'{{"parentUuid":{self._parent},"isSidechain":false,"promptId":"{self._prompt}","type":"user",'
                f'"message":{message},"uuid":"{uuid}","timestamp":"{self._time()}"{more}{self._tail()}'
            )
        self._add(line)
        self._parent = f'"{uuid}"'

    def _assistant(self, block: Block, number: int, of: int, ids: tuple[str, str], usage: Usage, stop: str) -> str:
        uuid = self._uuid()
        message, request = ids
        begun = f'"message":{{"model":"{self._model}","id":"{message}","type":"message","role":"assistant",'
        counts = (
            f'"input_tokens":{usage.input},"cache_creation_input_tokens":{usage.cache_write},'
            f'"cache_read_input_tokens":{usage.cache_read}'
        )
        if self._style is Style.OLD:
            stopped = f'"{stop}"' if number == of else "null"
            line = (
                f'{self._head()},{begun}"content":[{block.content}],"stop_reason":{stopped},"stop_sequence":null,'
                f'"usage":{{{counts},"cache_creation":{{"ephemeral_5m_input_tokens":{usage.cache_write},'
                f'"ephemeral_1h_input_tokens":0}},"output_tokens":{usage.output * number // of},'
                f'"service_tier":"standard"}}}},"requestId":"{request}","type":"assistant","uuid":"{uuid}",'
                f'"timestamp":"{self._time()}"}}'
            )
        else:
            line = (
                f'{{"parentUuid":{self._parent},"isSidechain":false,{begun}"content":[{block.content}],'
                f'"stop_reason":"{stop}","stop_sequence":null,"stop_details":null,"usage":{{{counts},'
                f'"output_tokens":{usage.output},"output_tokens_details":{{"thinking_tokens":{usage.reasoning}}},'
                f'"server_tool_use":{{"web_search_requests":0,"web_fetch_requests":0}},"service_tier":"standard",'
                f'"cache_creation":{{"ephemeral_1h_input_tokens":0,"ephemeral_5m_input_tokens":{usage.cache_write}}},'
                f'"iterations":[],"speed":"standard"}}}},"apiBlockIndex":{number - 1},"requestId":"{request}",'
                f'"type":"assistant","uuid":"{uuid}","timestamp":"{self._time()}","effort":"medium"{self._tail()}'
            )
        self._add(line)
        self._parent = f'"{uuid}"'
        return uuid

    def _head(self) -> str:
        return (
            f'{{"parentUuid":{self._parent},"isSidechain":false,"userType":"external","cwd":"{self.cwd}",'
            f'"sessionId":"{self.session}","version":"2.0.76","gitBranch":"{self._branch}"'
        )

    def _tail(self) -> str:
        return (
            f',"userType":"external","entrypoint":"cli","cwd":"{self.cwd}","sessionId":"{self.session}",'
            f'"version":"2.1.325","gitBranch":"{self._branch}"}}'
        )

    def _add(self, line: str) -> None:
        raw = line.encode() + b"\n"
        self.lines.append(raw)
        self.bytes += len(raw)

    def _size(self, pieces: int) -> int:
        """Draw a text size: most are short, some are long."""
        drawn = self._rng.random()
        return 1 + int(pieces * self._scale * (0.4 if drawn < 0.8 else 3.4 * drawn))

    def _pass(self, least: int, most: int) -> None:
        """Advance the clock by milliseconds; short waits are more frequent than long ones."""
        drawn = self._rng.random()
        self.now += timedelta(milliseconds=least + int((most - least) * drawn * drawn * drawn))

    def _time(self) -> str:
        return self.now.isoformat(timespec="milliseconds") + "Z"

    def _uuid(self) -> str:
        drawn = f"{self._rng.getrandbits(128):032x}"
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"

    def _token(self) -> str:
        """Return random letters and digits, like the end of an API id."""
        return b64encode(self._rng.randbytes(17), b"xy").decode()[:22]


_PART_TYPES = {"text": "text", "thinking": "reasoning", "tool_use": "tool_call"}
