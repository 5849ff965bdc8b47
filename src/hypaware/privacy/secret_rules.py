r"""Rules for secrets in text: keys with a known prefix, private keys, tokens after an authentication scheme, passwords
in URLs and commands, signatures, and values next to names such as DB_PASSWORD.

Prefixes, lengths and alphabets are those that the providers document and that repository scanners use. Lengths are
lower bounds, and a token is matched to its end, so a provider that makes its keys longer leaves no remainder. All
expressions work on UTF-8 bytes, so ASCII rules never split a character.

Every expression looks at each byte a bounded number of times: repetitions are bounded or possessive, and an expression
that may fail after a long run starts only at the beginning of a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_W = r"[A-Za-z0-9_-]"
_ALNUM = r"[A-Za-z0-9]"
_HEX = r"[0-9a-f]"


@dataclass(frozen=True)
class TokenRule:
    """A token with a known beginning."""

    kind: str
    expression: str
    """Starts with a plain character, so that the combined search can skip other text."""


# `config.values.SECRET_RULES` lists the names. The first matching rule names a token, so narrow rules come first.
TOKEN_RULES = (
    TokenRule("anthropic-key", rf"sk-ant-{_W}{{8,}}+"),
    TokenRule("openrouter-key", rf"sk-or-{_W}{{16,}}+"),
    TokenRule("openai-key", rf"sk-(?:proj|svcacct|admin|None|service)-{_W}{{16,}}+"),
    TokenRule("openai-key", rf"sk-{_ALNUM}{{20}}{_W}*+"),
    TokenRule("openai-key", rf"sess-{_ALNUM}{{32}}{_W}*+"),
    TokenRule("groq-key", rf"gsk_{_ALNUM}{{40,}}+"),
    TokenRule("xai-key", rf"xai-{_ALNUM}{{40,}}+"),
    TokenRule("perplexity-key", rf"pplx-{_ALNUM}{{32,}}+"),
    TokenRule("replicate-key", rf"r8_{_ALNUM}{{36,}}+"),
    TokenRule("huggingface-token", rf"hf_{_ALNUM}{{30,}}+"),
    TokenRule("huggingface-token", rf"api_org_{_ALNUM}{{30,}}+"),
    TokenRule("aws-key-id", r"A(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[A-Z2-7]{16}(?![A-Za-z0-9])"),
    TokenRule("aws-bedrock-key", r"ABSK[A-Za-z0-9+/]{80,}+={0,2}"),
    TokenRule("gcp-key", rf"AIza{_W}{{35,}}+"),
    TokenRule("gcp-oauth-token", rf"ya29\.{_W}{{20,}}+"),
    TokenRule("gcp-oauth-secret", rf"GOCSPX-{_W}{{20,}}+"),
    TokenRule("github-token", r"github_pat_[A-Za-z0-9_]{40,}+"),
    TokenRule("github-token", rf"gh[pousr]_{_ALNUM}{{30}}[A-Za-z0-9_]*+"),
    TokenRule("gitlab-token", rf"gl(?:pat|dt|rt|ft|soat|agent|imt|ptt|oas|cbt|ffct)-{_W}{{20,}}+(?:\.{_W}{{8,}}+)*+"),
    TokenRule("slack-token", rf"xox[abeoprs]-{_W}{{10,}}+(?:\.{_W}++)*+"),
    TokenRule("slack-token", rf"xapp-\d-{_W}{{10,}}+"),
    TokenRule("slack-webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{20,}+"),
    TokenRule("discord-webhook", rf"discord(?:app)?\.com/api/webhooks/\d{{15,}}+/{_W}{{40,}}+"),
    TokenRule("stripe-key", rf"sk_(?:live|test|prod)_{_ALNUM}{{10,}}+"),
    TokenRule("stripe-key", rf"rk_(?:live|test|prod)_{_ALNUM}{{10,}}+"),
    TokenRule("stripe-key", r"whsec_[A-Za-z0-9+/]{24,}+=*+"),
    TokenRule("npm-token", rf"npm_{_ALNUM}{{30,}}+"),
    TokenRule("pypi-token", rf"pypi-AgE{_W}{{40,}}+"),
    TokenRule("rubygems-key", rf"rubygems_{_HEX}{{40,}}+"),
    TokenRule("docker-token", rf"dckr_[po]at_{_W}{{20,}}+"),
    TokenRule("digitalocean-token", rf"do[opr]_v1_{_HEX}{{40,}}+"),
    TokenRule("databricks-token", rf"dapi{_HEX}{{32}}(?:-\d)?"),
    TokenRule("doppler-token", rf"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{{2,40}}\.)?{_ALNUM}{{40,}}+"),
    TokenRule("vault-token", rf"hv[bsr]\.{_W}{{24,}}+"),
    TokenRule("shopify-token", r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32,}+"),
    TokenRule("sendgrid-key", rf"SG\.{_W}{{16,32}}+\.{_W}{{32,}}+"),
    TokenRule("mailgun-key", rf"key-{_HEX}{{32}}(?![0-9A-Za-z])"),
    TokenRule("twilio-key", rf"SK{_HEX}{{32}}(?![0-9A-Za-z])"),
    TokenRule("sentry-token", r"sntry[su]_[A-Za-z0-9+/=_-]{40,}+"),
    TokenRule("grafana-token", rf"glsa_{_ALNUM}{{32}}_[0-9A-Fa-f]{{8}}"),
    TokenRule("grafana-token", r"glc_[A-Za-z0-9+/]{32,}+=*+"),
    TokenRule("linear-key", rf"lin_api_{_ALNUM}{{32,}}+"),
    TokenRule("notion-token", rf"ntn_{_ALNUM}{{40,}}+"),
    TokenRule("postman-key", rf"PMAK-{_HEX}{{24}}-{_HEX}{{30,}}+"),
    TokenRule("newrelic-key", r"NRAK-[A-Z0-9]{27,}+"),
    TokenRule("figma-token", rf"figd_{_W}{{30,}}+"),
    TokenRule("supabase-key", rf"sb(?:p|_secret)_{_W}{{30,}}+"),
    TokenRule("planetscale-token", r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{32,}+"),
    TokenRule("fly-token", r"fm[12][ar]?_[A-Za-z0-9+/=_-]{80,}+"),
    TokenRule("netlify-token", rf"nfp_{_ALNUM}{{36,}}+"),
    TokenRule("pulumi-token", rf"pul-{_HEX}{{40}}"),
    TokenRule("artifactory-key", rf"AKCp{_ALNUM}{{60,}}+"),
    TokenRule("atlassian-token", r"ATATT3[A-Za-z0-9_=-]{60,}+"),
    TokenRule("telegram-token", rf"bot\d{{8,10}}:AA{_W}{{32,}}+"),
    TokenRule("age-key", r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{50,}+"),
    TokenRule("hypaware-token", rf"hypb_{_W}{{20,}}+"),
    TokenRule("jwt", rf"e(?<![A-Za-z0-9_.-]e)yJ{_W}{{10,}}+\.eyJ{_W}{{10,}}+(?:\.{_W}*+)?+"),
    TokenRule("jwt", rf"e(?<![A-Za-z0-9_.-]e)yJ{_W}{{10,}}+\.\.{_W}{{10,}}+\.{_W}{{10,}}+\.{_W}{{10,}}+"),
)
BEARER = "bearer-token"
BASIC = "basic-credentials"
AZURE_CLIENT = "azure-client-secret"
COOKIE = "cookie"
PRIVATE_KEY = "private-key"
URL_PASSWORD = "url-password"
SIGNATURE = "url-signature"
PASSWORD = "password"
ASSIGNED = "assigned-secret"
_AFTER_SCHEME = rb"(?:[ \t]|%20|\\{1,3}t){1,8}+"
SCHEMES = {
    b"bearer": (BEARER, re.compile(_AFTER_SCHEME + rb"([A-Za-z0-9._~+/=-]{8,}+)")),
    b"basic": (BASIC, re.compile(_AFTER_SCHEME + rb"([A-Za-z0-9+/]{8,}+={0,2}+)")),
}
"""Schemes that precede a token that nothing else identifies. In lower case, like the names below."""
AUTHORIZATION, COOKIE_NAME, AUTH_NAME = b"authorization", b"cookie", b"auth"
SECRET_HEADERS = (AUTHORIZATION, COOKIE_NAME, AUTH_NAME)
_AFTER_HEADER = rb"[\\\"'`\]]{0,4}+[ \t]{0,8}+(?:=>|:=|==?|:)[ \t]{0,8}+\[?+(?:\\{0,3}[\"'`])?+"
AUTHORIZATION_VALUE = re.compile(
    _AFTER_HEADER + rb"(?P<scheme>[A-Za-z][A-Za-z0-9-]{0,19}+[ \t]{1,8}+)?+(?P<value>[A-Za-z0-9._~+/=:-]{16,}+)"
)
AUTH_VALUE = re.compile(_AFTER_HEADER + rb"([A-Za-z0-9+/]{8,}+={0,2}+)")
"""User and password in the configuration of Docker and npm."""
COOKIE_VALUE = re.compile(_AFTER_HEADER + rb"([^\r\n\"'`\\]{1,8192}+)")
COOKIE_TOKEN = re.compile(rb"[!-~]++")
COOKIE_MIN_LENGTH = 16
COOKIE_ATTRIBUTES = frozenset((b"domain", b"path", b"expires", b"max-age", b"samesite"))
AZURE_PREFIX_LENGTH = 4
AZURE_SECRET = re.compile(rb"Q~(?<=[A-Za-z0-9_~.]{3}\dQ~)[A-Za-z0-9_~.-]{31,40}")
"""Without its first four characters, so that the search starts at the two that are the same in all of them."""
PEM_BEGIN = re.compile(rb"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
PEM_END = re.compile(rb"-----END (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
PEM_MAX_LENGTH = 1 << 15
PEM_REST = re.compile(rb"(?:[A-Za-z0-9+/=:, \t\r\n-]++|\\[nrt])*+")
"""The rest of a key whose end line is missing."""
URL_CREDENTIALS = re.compile(
    rb"://(?P<user>[^\s/@:\"'<>\\?#]{0,256}+)"
    rb"(?::(?:(?P<password>[^\s/\"'<>@\\]{1,256}+(?:@[^\s/\"'<>@\\?#&,=]{1,256}+(?=@))*+)"
    rb"|(?!\d{1,5}/)(?P<slashed>[^\s\"'<>@\\]{1,256}+)))?@"
)
DATABASE_SCHEMES = (b"postgres", b"postgresql", b"mysql", b"mongodb", b"mongodb+srv", b"redis", b"amqp", b"amqps")
"""Schemes whose URLs may hold a password with a slash. Elsewhere, what looks like it is a port and a path."""
URL_SIGNATURE = re.compile(rb"sig(?<![a-z0-9_]sig)(?:nature)?=([a-z0-9%+/_~.=-]{16,}+)")
SQL_NAME = b"identified"
SQL_PASSWORD = re.compile(rb"(?i:[ \t]{1,8}+with[ \t]{1,8}+\w{1,40}+)?+(?i:[ \t]{1,8}+by)[ \t]{1,8}+(?P<open>')")
# Endings of names whose value is a secret. Of names that end in `key` only these, because most keys are no secrets.
PASSWORD_NAMES = (b"password", b"passwd", b"passphrase", b"passcode", b"pwd")
SHORT_PASSWORD_NAME = re.compile(rb"(?:^|[^A-Za-z0-9]|[a-z](?=P))(?:pass|PASS|Pass)$")
SECRET_NAMES = (b"secret", b"token")
# fmt: off
KEY_NAMES = (
    b"api", b"access", b"secret", b"private", b"account", b"auth", b"shared", b"storage", b"signing",
    b"encryption", b"master", b"service", b"admin", b"app", b"license", b"subscription", b"webhook",
)
# fmt: on
ENV_NAME = re.compile(rb"[A-Z][A-Z0-9_]*+$")
ASSIGNMENT = re.compile(
    rb"(?P<close>[\\\"'`\]]{0,4}+)(?P<space>[ \t]{0,8}+)(?P<sign>=>|:=|==?|:)(?P<after>[ \t]{0,8}+)"
    rb"(?P<open>\\{0,3}[\"'`])?+"
)
_QUOTE = rb"\\{0,3}[\"'`]"
_BLANK = rb"(?:[ \t\r\n]|\\[nrt])"
OPTION = re.compile(rb"(?:" + _QUOTE + rb",?[ \t]{0,8}+|[ \t]{1,8}+)(?P<open>" + _QUOTE + rb")?+(?!-)")
"""`--password x`, also as a list of arguments."""
ELEMENT = re.compile(rb"(?:[ \t][^<>]{0,256}+)?+>" + _BLANK + rb"{0,64}+(?:<!\[CDATA\[)?+")
PROPERTY = re.compile(rb"</key>" + _BLANK + rb"{0,64}+<string>")
"""A member of a property list."""
ELEMENT_VALUE = re.compile(rb"[^<>\r\n]{1,2048}?(?=\]\]>|<)")
PAIR = re.compile(
    rb"(?:\\{0,3}[\"'][^{}<>]{0,160}?|" + _BLANK + rb"{1,64}+)(?<![A-Za-z0-9_])\\{0,3}[\"']?(?i:value)\\{0,3}[\"']?"
    rb"[ \t]{0,8}+[:=][ \t]{0,8}+(?P<open>" + _QUOTE + rb")?+"
)
"""The rest of a name and its value: `"name": "DB_PASSWORD", "value": "x"`."""
SENTENCE = re.compile(rb"[ \t]{1,8}+(?P<verb>(?i:is|was)[ \t:]{1,8}+)?+(?P<open>" + _QUOTE + rb")?+")
"""`The password is x`, and SQL: `WITH PASSWORD 'x'`."""
CALL = re.compile(rb"\([ \t]{0,8}+(?P<open>" + _QUOTE + rb")")
NETRC_LOGIN = re.compile(rb"login" + _BLANK + rb"{1,32}+[^\s\\]{1,64}+" + _BLANK + rb"{1,32}+$")
NETRC = re.compile(_BLANK + rb"{1,32}+(?P<open>)")
SHORT_OPTION = re.compile(
    rb"-(?<=[\s\"'`]-)(?P<name>-user|-proxy-user|[pPuUaw])(?P<gap>=|(?:" + _QUOTE + rb")?+[ \t,]{1,8}+)?+"
    rb"(?P<open>" + _QUOTE + rb")?+"
)
PASSWORD_COMMANDS = {
    b"p": r"sshpass|(?:docker|podman|nerdctl|helm registry|oras|az|oc)[ \t]+login|mongo\w*",
    b"P": "sqlcmd|bcp|isql|unzip|zip",
    b"a": "redis-cli|valkey-cli",
    b"w": r"ldap\w+",
}
"""Short option → the commands for which it is a password."""
_BEFORE_OPTION = r"\b(?:%s)\b[^|;&]*+$"
COMMANDS = {name: re.compile((_BEFORE_OPTION % commands).encode()) for name, commands in PASSWORD_COMMANDS.items()}
ATTACHED_COMMANDS = re.compile((_BEFORE_OPTION % r"mysql\w*|mariadb[\w-]*|7z[ar]?").encode())
"""Commands whose password follows `-p` without a space."""
USER_COMMANDS = re.compile((_BEFORE_OPTION % "curl|https?|xh").encode())
USER = re.compile(rb"[^\s:\"'`\\]{0,128}+:")
_CHARACTER = rb"[^\\\r\n%b]++|\\[^\\\r\n%b]"
QUOTED_VALUES = {
    opened + quote: re.compile(rb"(?:" + character.replace(b"%b", quote) + rb")++")
    for quote in (b'"', b"'", b"`")
    for opened, character in (
        (b"", rb"[^\\\r\n%b]++|\\[^\r\n]"),
        (b"\\", _CHARACTER + rb"|\\\\(?:\\[^\r\n]|[^\\\r\n%b])"),
        (b"\\\\", _CHARACTER),
        (b"\\\\\\", _CHARACTER),
    )
}
"""Opening quote → the form of the value. The quote is written as `\\"` in JSON within a string."""
BARE_VALUE = re.compile(rb"(?:[^\\\s\"'`]++|\\[^\s\"'`nrt])++")
BARE_END = re.compile(rb"[&;,](?=[A-Za-z_][A-Za-z0-9_. -]{0,40}+=)|<(?=[A-Za-z/!])")
"""Where the next field begins."""
CODE = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:>-]*+[(\[{]")

_PLACEHOLDER = re.compile(
    rb"(?i)\$[({]|\$+[A-Z_][\w.:]*+$|<[^<>]*+>|<[A-Z_-]*+$|\{\{|%[({]|%\w++%$|\*{3,}+\w{0,4}$|\.{3,}+\w{0,4}$|x{3,}+[x0-9_.*-]*+$"
    rb"|(?:your[_-]|example|placeholder|change[_-]?me|redacted)[A-Z_.-]*+[0-9]{0,4}$"
    rb"|(?:none|null|nil|undefined|true|false|string|str|bytes|required|optional|test|secret|token|pass(?:word)?|bearer|basic)$"
    rb"|(?:process\.env|os\.environ|os\.getenv|import\.meta|self\.|this\.|config\.|settings\.|env\.|args\.|options\.)"
    rb"[\w.]*+(?:!?$|[?|\[(;,:+])"
    rb"|(?:~|\.{0,2})/(?:home|run|etc|tmp|usr|var|opt|users|private|root|mnt|srv|dev|proc|data|app|secrets?|library)\b"
    rb"|(?:https?|file)://"
)
_WORDS = re.compile(rb"[A-Za-z_]+(?:[._-][A-Za-z_]+)*")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z_]*(?:[0-9]{1,2})?(?:[._-][A-Za-z_]+[0-9]{0,2})*")
_SPECIAL = re.compile(rb"[!@#$%^&*~?+]")
# The more repetitions an automaton counts, the more states it needs.
_MAX_REPEATS = 3
_LOOK_AROUND = re.compile(r"\(\?<?[!=][^)]*\)")
_REPEATS = re.compile(r"\{(\d+)(?:,\d*)?\}\+?")
_POSSESSIVE = re.compile(r"(?<=[*+?])\+")


def is_secret(value: bytes, kind: str = ASSIGNED, is_certain: bool = False, *, is_quoted: bool = False) -> bool:
    """Return whether the value is a secret of this kind; `is_certain` means that it cannot be anything else."""
    if is_placeholder(value):
        return False
    is_password = kind == PASSWORD
    if is_certain:
        return len(value) >= 6 and (is_password or not value.isdigit())
    if len(value) < (6 if is_password else 8) or b" " in value or value.isdigit():
        return False
    if is_password and is_quoted:
        return _WORDS.fullmatch(value) is None
    if is_password and _SPECIAL.search(value) and _count_digits(value) and value.upper() != value.lower():
        return True
    return is_mixed(value) and _IDENTIFIER.fullmatch(value) is None


def is_placeholder(value: bytes) -> bool:
    return _PLACEHOLDER.match(value) is not None or len(set(value)) <= 2


def is_mixed(value: bytes) -> bool:
    """Return whether the value has letters and at least two digits, as random values nearly always do."""
    return _count_digits(value) >= 2 and any(65 <= byte <= 90 or 97 <= byte <= 122 for byte in value)


def _count_digits(value: bytes) -> int:
    return sum(48 <= byte <= 57 for byte in value)


def _build_hint() -> str:
    """Return a prefilter that matches every text in which a rule finds a secret, and few others.

    It is made for RE2, the automaton engine in Arrow, which checks millions of texts at once; only texts that match are
    given to the rules. It is derived from the rules by loosening them: no look-around, no upper bounds, at most three
    repetitions where a rule requires many. It may therefore match too often, but never too rarely.
    """
    password = f"(?i:{_alternatives(PASSWORD_NAMES)})"
    name = f"(?:{password}|(?i:pass|{_alternatives(SECRET_NAMES)}|(?:{_alternatives(KEY_NAMES)})[_.-]*key)|_KEY)"
    ending = "(?i:word|wd|phrase|code|pass|secret|token|key)"
    blank = r"(?:\s|\\[nrt])"
    sign = r"[\\\"'`\]]*[ \t]*[=:]"
    return "|".join(
        (
            *dict.fromkeys(_loosen(rule.expression) for rule in TOKEN_RULES),
            r"(?i:bearer)[ \t%\\]",
            r"(?i:basic)(?:[ \t]|%20|\\+t)+[A-Za-z0-9+/]{4,}",
            f"(?i:{_alternatives(SECRET_HEADERS)}){sign}",
            r"\dQ~",
            "-----BEGIN ",
            r"://[^\s/@:\"'<>\\?#]*(?::[^\s\"'<>\\]+)?@",
            f"{name}{sign}",
            f"(?:<|[\\s\"'`]--?|(?i:name|key)[\\\\\"' \\t]*[:=][\\\\\"' \\t]*)"
            f"[A-Za-z0-9_.:-]*{ending}(?:[\\\\\"'`>]|\\s)",
            f"{ending}</key>",
            f"{password}(?:[ \\t]+(?i:is|was)[ \\t:]|[ \\t(]+[\\\\\"'`])",
            f"login{blank}+[^\\s\\\\]+{blank}+(?i:password){blank}",
            r"(?i:sig|signature)=[A-Za-z0-9%+/_~.=-]{4,}",
            r"(?i:identified)[ \t]+(?i:with|by)[ \t]",
            r"[\s\"'`]-(?:[pPuUaw]|-user|-proxy-user)[\s=\"'`\\,]",
            r"(?:mysql|mariadb|7z).*[\s\"'`]-p",
        )
    )


def _loosen(expression: str) -> str:
    expression = _LOOK_AROUND.sub("", expression)
    expression = _REPEATS.sub(lambda count: f"{{{min(int(count[1]), _MAX_REPEATS)},}}", expression)
    return _POSSESSIVE.sub("", expression)


def _alternatives(words: tuple[bytes, ...]) -> str:
    return "|".join(word.decode() for word in words)


SECRET_HINT = _build_hint()
