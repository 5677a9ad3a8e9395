"""API keys: how they are written, which are good, what is refused."""

import hmac

import pytest

from anychip.server import keys
from anychip.server.keys import ApiKey, KeyRing, KeysInvalid, parse_keys
from support.local_client import Asker

TEXT = """\
# who may ask
alice: sk-alice-1
  bob@example.com:\tsk-bob  \r

sk-without-a-name
# carol: sk-carol
"""


def test_a_file_holds_a_key_a_line_with_names_comments_and_spaces_around():
    assert parse_keys(TEXT) == (
        ApiKey("alice", "sk-alice-1"),
        ApiKey("bob@example.com", "sk-bob"),
        ApiKey("line-5", "sk-without-a-name"),
    )


def test_a_key_alone_is_a_file_as_before():
    assert parse_keys("sk-only \r\n") == (ApiKey("line-1", "sk-only"),)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["it holds no key"]),
        ("# none\n\n", ["it holds no key"]),
        ("ключ", ["line 1: a character that is not ASCII"]),
        ("alice: sk-\u00fc", ["line 1: a character that is not ASCII"]),
        ("alice: sk-1 # hers", ["line 1: a space"]),
        ("two words", ["line 1: a space"]),
        ("sk\x0bone", ["line 1: a space or a control character"]),
        ("alice:sk-1", ["line 1: a colon in a key; write `name: key`, with a space"]),
        ("alice: ", ["line 1: a colon in a key"]),
        ("x" * 5000, ["line 1: more than 4096 characters"]),
        ("a: k1\na: k2", ["the name a stands there twice"]),
        ("a: k1\nb: k1", ["a and b are the same key"]),
        ("ключ\nalice:sk-1\na: k", ["line 1: a character", "line 2: a colon"]),
    ],
)
def test_what_is_wrong_is_told_at_once_and_shows_no_key(text, problems):
    with pytest.raises(KeysInvalid) as error:
        parse_keys(text)
    assert all(problem in str(error.value) for problem in problems)
    assert "sk-" not in str(error.value)


def test_a_key_is_not_shown_by_its_repr():
    assert "sk-1" not in repr(ApiKey("a", "sk-1"))
    assert "sk-1" not in str(vars(KeyRing([ApiKey("a", "sk-1")])))


def test_every_key_is_compared_in_constant_time_whatever_is_given(monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    ring = KeyRing([ApiKey("a", "k1"), ApiKey("b", "longer key"), ApiKey("c", "k3")])
    for given, name in ((b"k1", "a"), (b"k3", "c"), (b"", None), (b"\xff" * 9999, None)):
        compared.clear()
        assert ring.name_of(given) == name
        assert compared == [(32, 32)] * 3


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("Bearer k1", 200),
        ("bearer  k2 ", 200),
        ("Bearer k3", 401),
        ("Bearer", 401),
        ("Basic k1", 401),
        ("k1", 401),
        ("Bearer k1 k2", 401),
        (b"Bearer \xc3\xbc", 401),
        (None, 401),
    ],
)
def test_any_of_the_keys_is_good(given, status, tmp_path):
    (tmp_path / "keys").write_text("a: k1\nb: k2\n")
    asker = Asker(network={"host": "0.0.0.0", "api_key": {"file": str(tmp_path / "keys")}})
    headers = {} if given is None else {"Authorization": given}
    reply = asker.ask("GET", "/v1/models", headers=headers)
    assert reply.status_code == status
    if status == 401:
        assert reply.headers["www-authenticate"] == "Bearer"


def test_keys_that_are_replaced_are_good_no_more():
    ring = KeyRing([ApiKey("a", "k1")])
    assert not ring.replace([ApiKey("a", "k1")])
    assert ring.replace([ApiKey("a", "k2"), ApiKey("b", "k3")])
    assert (ring.name_of(b"k1"), ring.name_of(b"k2"), ring.names) == (None, "a", ("a", "b"))
