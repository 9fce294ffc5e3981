# SPDX-License-Identifier: Apache-2.0
"""The value of sasl.jaas.config, as people write it, beside what Kafka's own parser makes of it."""

from __future__ import annotations

import base64
import random
import subprocess
from pathlib import Path

import pytest

from weir.access.client_properties import parse_properties
from weir.access.jaas import login_options
from weir.lab.jars import ensure
from weir.lab.java import find_java

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

READ = {
    'M required username="u" password="p";': "p",
    "M required username='u' password='p';": "p",
    r"M required username='u' password='it\'s';": "it's",
    r"""M required username="u" password="a\"b\\c";""": r'a"b\c',
    r"M required username='u' password='tab\tend\101';": "tab\tendA",
    """M required username='u' password='say "so"';""": 'say "so"',
    "M required username=u password=secret;": "secret",
    "M required username=u password=a-b_c.d$1;": "a-b_c.d$1",
    "M required username=u password=pässwörd;": "pässwörd",
    "M REQUIRED username=u password=p ;": "p",
    "M optional\n username = u\n password = p;": "p",
    f'{PLAIN} required /* of ours */ username="u" password="p"; // end': "p",
    'M required username="u" password="a=b;c";': "a=b;c",
    'M required username="u" password="p" tokenauth="true";': "p",
    'M required username="u" password="";': "",
}
REFUSED = (
    'M required username="u" password="XX"YY";',
    'M required username="u" password="p"',
    "M required username=u password=123;",
    "M required username=u password=1x;",
    "M required username=u password=-x;",
    "M required username=u password=a@b;",
    "M required username=u password=a/b;",
    "M required username=u password=;",
    'M required username="u" password "p";',
    'M required username="u" password="p\n";',
    'M username="u" password="p";',
    "M needed username=u password=p;",
    "M",
    "",
    ";",
    'M required username="u" password="p"; N required;',
)


@pytest.mark.parametrize("text", READ, ids=range(len(READ)))
def test_password_is_read(text: str) -> None:
    found = login_options(text)
    assert (found["username"], found["password"]) == ("u", READ[text])


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_text_that_kafka_refuses_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        login_options(text)
    assert "XX" not in str(refused.value) and "YY" not in str(refused.value)


def files(count: int = 400) -> list[str]:
    """Files of properties: those above as they stand, and others put together of what is special in them."""
    chosen = random.Random(14)
    parts = [*"M =;\"'\\a-.7/ü@$_:\x85\u2028\f", "required", "username", "password", "\\\\", '\\"', "\\\\\\\\"]
    parts += ["\\t", "\\u00fc", "//", "/*", "*/", "\\\n ", "x1"]
    texts = [text.replace("\\", "\\\\").replace("\n", "\\n") for text in (*READ, *REFUSED)]
    for _ in range(count):
        value = "".join(chosen.choice(parts) for _ in range(chosen.randrange(1, 12)))
        texts += [f"M required username=u password={value};", f'M required username="{value}" password="p";']
    return [f"sasl.jaas.config={text}" for text in texts]


def ours(text: str) -> str:
    def encoded(word: str) -> str:
        return base64.urlsafe_b64encode(word.encode()).decode().rstrip("=")

    try:
        options = login_options(parse_properties(text)["sasl.jaas.config"])
    except (ValueError, KeyError):
        return "refused"
    return " ".join(f"{encoded(name)}={encoded(options[name])}" for name in sorted(options))


@pytest.mark.integration
def test_kafkas_own_parser_reads_the_same() -> None:
    classpath = ":".join(map(str, ensure("4.4.0")))
    asked = "\n".join(base64.b64encode(text.encode()).decode() for text in files())
    program = Path(__file__).with_name("JaasOptions.java")
    done = subprocess.run(
        [find_java(), "-cp", classpath, program], input=asked, capture_output=True, text=True, timeout=120
    )
    theirs = done.stdout.splitlines()
    assert len(theirs) == len(files()), done.stderr
    assert sum(line != "refused" for line in theirs) > 100
    unlike = [(text, ours(text), said) for text, said in zip(files(), theirs, strict=True) if ours(text) != said]
    assert unlike == []
