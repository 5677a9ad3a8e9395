"""Keys where a recipe says they are: found beside the recipe, checked before anything starts, never shown."""

import os
import subprocess

import pytest

from anychip.deploy.secrets import first_key, read_keys, shell_reference
from anychip.recipe import load
from anychip.recipe.schema import SecretRef
from anychip_sdk.errors import PreconditionFailed


def names_and_secrets(*arguments):
    return [(key.name, key.secret) for key in read_keys(*arguments)]


def test_a_variable_holds_one_key_whose_ends_do_not_count():
    ref = SecretRef(env="SVC_KEY")
    assert names_and_secrets(ref, {"SVC_KEY": " sk:1 \r\n"}) == [("SVC_KEY", "sk:1")]
    assert first_key(ref, {"SVC_KEY": "sk-1"}) == "sk-1"
    assert read_keys(None) == ()
    assert first_key(None) is None


def test_a_file_holds_any_number_of_keys_and_commands_use_the_first(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes("\ufeff# ours\r\nalice: sk-1 \r\nsk-2\r\n".encode())
    ref = SecretRef(file=str(path))
    assert names_and_secrets(ref) == [("alice", "sk-1"), ("line-3", "sk-2")]
    assert first_key(ref) == "sk-1"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        (b"", "it holds no key"),
        (b"\xff\xfe", "is not UTF-8 text, from byte 0 on"),
        ("sk-\u00fc".encode(), "a character that is not ASCII"),
        (b"#" * 2_000_000, "more than 1048576 bytes"),
    ],
)
def test_a_file_that_holds_no_good_key_is_told_by_its_name_and_shows_none(tmp_path, content, told):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PreconditionFailed, match=r"server\.api_key: the file .*/keys") as error:
        read_keys(SecretRef(file=str(path)))
    assert told in str(error.value)
    assert "sk-" not in str(error.value)


@pytest.mark.parametrize(("value", "told"), [("", "is not set or empty"), (" ", "is not set"), ("é", "not ASCII")])
def test_a_variable_that_holds_no_good_key_is_told_by_its_name(value, told):
    with pytest.raises(PreconditionFailed, match=told) as error:
        read_keys(SecretRef(env="SVC_KEY"), {"SVC_KEY": value})
    assert "SVC_KEY" in str(error.value)


@pytest.mark.parametrize("file", ["keys", "./keys", "../b/keys"])
def test_a_relative_file_is_relative_to_the_recipe_that_says_it(tmp_path, monkeypatch, file):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b/base.yaml").write_text(f"server: {{api_key: {{file: {file}}}}}\n")
    recipe = "extends: [../b/base.yaml]\nversion: 1\nname: svc\nmodel: {source: ./m}\n"
    (tmp_path / "a/recipe.yaml").write_text(recipe)
    monkeypatch.chdir("/")
    loaded = load(tmp_path / "a/recipe.yaml")
    assert loaded.recipe.server.api_key == SecretRef(file=str(tmp_path / "b/keys"))


def test_what_the_shell_puts_in_for_a_key_is_the_first_key(tmp_path):
    path = tmp_path / "our keys"
    for content in ("sk-1\n", "# x\n\n alice: sk-1 \nbob: sk-2\n", "sk-1\nsk-2\n", "a.b@c:  sk-1"):
        path.write_text(content)
        line = f'printf %s "{shell_reference(SecretRef(file=str(path)))}"'
        assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout == "sk-1"
    assert shell_reference(SecretRef(env="KEY")) == "$KEY"
    assert os.fspath(path) in shell_reference(SecretRef(file=str(path)))
