"""The forms in which secrets are written: commands, configuration files, documents, URLs and code.

Each form holds `{}` where its secret stands. The whole secret is replaced, and the text around it stays.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hypaware.model import canonical
from hypaware.privacy.secret_rules import SECRET_HINT
from tests.support.secrets import redact_json, redact_json_text, redact_text

PASSWORD = "Tr0ub4dor&3xyz"
TOKEN = "q7Zk29vLm3Xw84TbN6"
HEX = "9f86d081884c7d659a2feaa0c55ad015"
BASIC = "ZGVwbG95OlRyMHViNGRvciYz"
SIGNATURE = "k3v9Yx2LqP0%2BzR7mN5tB8wC1dF4gH6jK%2Fs%3D"
FORMS = {
    # Keys and tokens that their beginning gives away.
    "anthropic": ("{}", "sk-" + "ant-api03-" + TOKEN),
    "openai": ("key {} here", "sk-" + "proj-" + TOKEN),
    "aws id": ("{}", "AK" + "IAJ5XQ3NTB7WZK2YHM"),
    "google": ("?key={}&x=1", "AI" + "za" + TOKEN + TOKEN),
    "github": ("git clone https://{}@host/x", "gh" + "p_" + TOKEN + TOKEN),
    "gitlab": ("{}", "gl" + "pat-" + TOKEN + "ab"),
    "slack": ("{}", "xo" + "xb-123456789012-" + TOKEN),
    "slack webhook": ("curl https://{}", "hooks.slack" + ".com/services/T0123/B0123/" + TOKEN + "s9d2k4"),
    "discord webhook": ("curl https://{}", "discord" + ".com/api/webhooks/123456789012345678/" + TOKEN * 3),
    "stripe": ("{}", "sk" + "_live_" + TOKEN),
    "npm": ("{}", "np" + "m_" + TOKEN + TOKEN),
    "jwt": ("{}", "ey" + "J" + TOKEN + ".ey" + "J" + TOKEN + "." + TOKEN),
    "azure client": ("{}", "abc8" + "Q~" + TOKEN + TOKEN),
    "bootstrap token of a server": ("hyp server join {}", "hyp" + "b_" + TOKEN + TOKEN[:14]),
    "private key": ("{}", "-----BEGIN " + "PRIVATE KEY-----\n" + TOKEN * 3 + "\n-----END " + "PRIVATE KEY-----"),
    # Headers.
    "bearer": ("curl -H 'Authorization: Bearer {}'", TOKEN),
    "basic": ("Authorization: Basic {}", BASIC),
    "other scheme": ("Authorization: Token {}", HEX),
    "header name": ("x-api-key: {}", TOKEN),
    "cookie": ("Cookie: theme=dark; sid={}; lang=en", TOKEN),
    "set-cookie": ("Set-Cookie: sid={}; Path=/", TOKEN),
    # Environment variables.
    "env": ("DB_PASSWORD={}", PASSWORD),
    "env export": ("export GH_TOKEN='{}'", "abcdefgh"),
    "env quoted with spaces": ('DB_PASSWORD="{}"', "correct horse battery"),
    "env key": ("STRIPE_KEY={}", TOKEN),
    "env pass": ("SMTP_PASS={}", PASSWORD),
    "env before a command": ("PGPASSWORD={} psql -h db", PASSWORD),
    "docker -e": ("docker run -e MYSQL_ROOT_PASSWORD={} mysql", PASSWORD),
    "windows set": ("set API_TOKEN={}", TOKEN),
    "powershell": ('$env:API_TOKEN = "{}"', TOKEN),
    # Assignments in files and code.
    "ini": ("password = {}", PASSWORD),
    "yaml": ("user: app\npassword: {}\nhost: db", PASSWORD),
    "yaml quoted": ("password: '{}'", PASSWORD),
    "json": ('{{"password": "{}"}}', PASSWORD),
    "json in a string": ('{{\\"api_key\\": \\"{}\\"}}', TOKEN),
    "json with an escaped quote": ('{{"password": "{}"}}', 'aB3\\"dE5fG'),
    "python": ("client_secret='{}'", TOKEN),
    "ruby": (":password => '{}'", PASSWORD),
    "go": ('apiKey := "{}"', TOKEN),
    "camel case": ("dbPass: '{}'", PASSWORD),
    "aws secret": ("aws_secret_access_key = {}", TOKEN + TOKEN),
    "call": ('builder.password("{}")', PASSWORD),
    "setter": ("config.setPassword('{}')", PASSWORD),
    "not ascii": ('password = "{}"', "pä55wörd!ß"),
    "special characters": ("password: {}", "p@s5w#rd!"),
    "comma": ("password={}", "aB3d,eF5g,h7"),
    "semicolon": ("password={}", "aB3d;eF5gh7"),
    "bracket": ("password: {}", "aB3$d(eF5)g[h7"),
    "pipe": ("password: {}", "aB3d|eF5gh7"),
    "connection string": ("Server=db;Password={};Database=app", PASSWORD),
    "connection string, short name": ("Uid=app;Pwd={};", PASSWORD),
    "argument": ("connect(user=app, password={}, db=x)", "aB3d%eF5gh7"),
    "storage account": ("AccountKey={};EndpointSuffix=x", TOKEN * 3 + "=="),
    "sentence": ("The password is {} for now.", PASSWORD),
    # Values that begin like placeholders.
    "dollar": ("DB_PASSWORD={}", "$ecret123!"),
    "bcrypt": ("password_hash_secret: {}", "$2b$12$" + TOKEN * 3),
    "example": ("API_TOKEN={}", "example-" + TOKEN),
    "your": ('token: "{}"', "your-" + TOKEN),
    "xxx": ("API_KEY={}", "xxx" + TOKEN),
    "dots": ("API_KEY={}", "..." + TOKEN),
    "less than": ("DB_PASSWORD={}", "<k9!Lm2x"),
    "changeme": ("DB_PASSWORD={}", "changeme-9Kq2!"),
    "code": ("SECRET_KEY={}", "config.9Kq2!vL7m"),
    # Options of commands.
    "--password": ("tool login --user app --password {} --verbose", PASSWORD),
    "--password=": ("tool login --password={} --verbose", PASSWORD),
    "--password quoted": ("tool --password '{}' x", PASSWORD),
    "--token": ("gh auth login --token {}", TOKEN),
    "--api-key": ("tool --api-key {} run", TOKEN),
    "--client-secret": ('az login --client-secret "{}"', TOKEN),
    "list of arguments": ('"args": ["--token", "{}"]', TOKEN),
    "curl -u": ("curl -u deploy:{} https://host/", PASSWORD),
    "curl --user": ("curl --user 'deploy:{}' https://host/", PASSWORD),
    "mysql -p": ("mysql -u root -p{} app", PASSWORD),
    "mysqldump -p": ("mysqldump -p'{}' app > x.sql", "hunter22"),
    "sshpass": ("sshpass -p {} ssh host", PASSWORD),
    "docker login": ("docker login -u me -p {} registry", PASSWORD),
    "redis-cli": ("redis-cli -h cache -a {} PING", PASSWORD),
    "ldapsearch": ("ldapsearch -D cn=admin -w {} -b dc=x", PASSWORD),
    "openssl": ("openssl rsa -in k.pem -passin pass:{}", PASSWORD),
    # Pairs of a name and a value.
    "pair in json": ('{{"name": "DB_PASSWORD", "value": "{}"}}', PASSWORD),
    "pair, capital letters": ('{{"Key": "api_token", "Value": "{}"}}', TOKEN),
    "pair in yaml": ("- name: DB_PASSWORD\n  value: {}\n- name: X", PASSWORD),
    "pair in attributes": ('<add key="ApiKey" value="{}" />', TOKEN),
    # Elements.
    "element": ("<password>{}</password>", PASSWORD),
    "element with a prefix": ("<ns:apiKey>{}</ns:apiKey>", TOKEN),
    "element with attributes": ('<password encrypted="no">{}</password>', PASSWORD),
    "element with cdata": ("<password><![CDATA[{}]]></password>", PASSWORD),
    "property list": ("<key>password</key>\n<string>{}</string>", PASSWORD),
    # Files with a form of their own.
    "docker auth": ('{{"auths": {{"https://index.example/v1/": {{"auth": "{}"}}}}}}', BASIC),
    "npm auth": ("//registry.example/:_auth={}", BASIC),
    "npm token": ("//registry.example/:_authToken={}", TOKEN),
    "netrc": ("machine host.example login deploy password {}", PASSWORD),
    "netrc on lines": ("machine host.example\n  login deploy\n  password {}\n", PASSWORD),
    "sql identified by": ("CREATE USER app IDENTIFIED BY '{}'", PASSWORD),
    "sql with password": ("ALTER ROLE app WITH PASSWORD '{}';", PASSWORD),
    "pgpass": ("db.example:5432:app:deploy:{}", PASSWORD),
    "basic auth in python": ("requests.get(url, auth=('deploy', '{}'))", PASSWORD),
    # URLs.
    "url": ("postgres://app:{}@db.example:5432/app", "p4ss%2Fword"),
    "url without a user": ("redis://:{}@cache.example", PASSWORD),
    "url with @ in the password": ("postgres://app:{}@db.example/app", "p4@ss@word"),
    "url with / in the password": ("postgresql://app:{}@db.example/app", "p4/ss/word"),
    "token as the user": ("https://{}@git.example/x.git", HEX),
    "query of jdbc": ("jdbc:mysql://db/app?user=app&password={}&ssl=true", "Tr0ub4dor3xyz"),
    "access token": ("https://host/?access_token={}&x=1", TOKEN),
    "shared access signature": ("https://a.blob.example/c?sv=2022-11-02&sp=r&sig={}", SIGNATURE),
    "signature of s3": ("https://b.s3.example/k?X-Amz-Expires=60&X-Amz-Signature={}&x=1", HEX * 2),
    "signature of google": ("https://storage.example/b/o?X-Goog-Signature={}", HEX * 4),
    "signature of cloudfront": ("https://d1.example/k?Expires=1&Signature={}&Key-Pair-Id=K1", TOKEN * 2 + "~A__"),
}
NOT_FOUND = {"pgpass", "basic auth in python"}
"""Not found: nothing next to the value says that it is a secret."""


MARKER = re.compile(r"\[[a-z0-9-]+:[0-9a-f]{12}\]")


def matches_hint(text: str) -> bool:
    return bool(pc.match_substring_regex(pa.array([text.encode()]), SECRET_HINT)[0].as_py())


@pytest.mark.hazard(59)
@pytest.mark.parametrize("form", [form for form in FORMS if form not in NOT_FOUND])
def test_a_secret_is_found_in_each_form_and_leaves_no_tail(form: str) -> None:
    around, secret = FORMS[form]
    text = around.format(secret)
    for each in (text, f"a = 1\n{text}\nb = 2", f"({text})", json.dumps(text)):
        redacted, counts = redact_text(each)
        assert counts.total() == 1, redacted
        marker = MARKER.findall(redacted)[0]
        assert redacted in (each.replace(secret, marker, 1), each.replace(json.dumps(secret)[1:-1], marker, 1))
        assert matches_hint(each)
        assert redact_text(redacted) == (redacted, {})


@pytest.mark.parametrize("form", sorted(NOT_FOUND))
def test_the_limits_of_the_rules_are_as_documented(form: str) -> None:
    around, secret = FORMS[form]
    assert redact_text(around.format(secret))[1] == {}, "it is found now: say so in docs/privacy.md"


@pytest.mark.hazard(59)
@pytest.mark.parametrize(
    "document",
    [
        {"name": "DB_PASSWORD", "value": PASSWORD},
        {"environment": [{"Name": "API_TOKEN", "Type": "text", "Value": TOKEN}]},
        {"args": ["--verbose", "--token", TOKEN]},
        {"env": {"STRIPE_KEY": TOKEN}},
        {"smtp": {"user": "app", "pass": PASSWORD}},
        {"auths": {"registry": {"auth": BASIC}}},
    ],
)
def test_a_secret_in_a_document_is_found_by_its_name(document: dict[str, object]) -> None:
    text = canonical.dumps(document)
    redacted, counts = redact_json_text(text)
    assert counts.total() == 1
    assert not any(secret in redacted for secret in (PASSWORD, TOKEN, BASIC))
    assert redact_json(document) == (canonical.loads(redacted), counts)
    assert redact_json_text(redacted) == (redacted, {})
    assert matches_hint(text)


@pytest.mark.parametrize(
    "text",
    [
        "Use --password to set it, --token TOKEN or --api-key <key>; --password-stdin reads it.",
        "mysql -p app, mysql -u root -p, curl -u user https://host, cp -p a b, git push -u origin main",
        "python -u main.py && docker run -p 8080:80 -w /srv/app x && ssh -p 2222 host",
        "<password></password> <token>...</token> <password>changeme</password>",
        '{"name": "password", "value": ""} {"name": "token", "type": "string", "value": "string"}',
        "- name: DB_PASSWORD\n  valueFrom:\n    secretKeyRef: db-credentials-1",
        "The password is required. The password is stored in 1Password. Her password was wrong",
        "IDENTIFIED BY 'password', identified by its id42",
        "password(prompt) getToken('main') password('')",
        "https://host:8080/a@b https://user@host/ http://localhost:3000/@scope/x1",
        "const sig=signature(value); Signature=<signature>; sig=0000000000000000",
        "auth: required, 'auth': 'basic', auth=HTTPBasicAuth(user, password)",
        "PASSWORD=$PASSWORD TOKEN=${TOKEN} KEY_TOKEN=%TOKEN% A_TOKEN=<token> B_TOKEN=xxxxxxxx C_TOKEN=your-token-here",
        "password: process.env.DB_PASSWORD!, token: config.tokens[0], secret = settings.API_SECRET_1",
        "the tests pass: 1234 of 1234; compass='north-1234'; bypass=cache4242",
    ],
)
def test_text_that_only_looks_like_these_forms_stays(text: str) -> None:
    assert redact_text(text) == (text, {})
