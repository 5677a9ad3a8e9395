"""Loading recipes: precedence, origins, extends, paths, unreadable files."""

import os
from pathlib import Path

import pytest

from anychip.recipe import load, recipe_digest
from anychip.recipe.keys import all_keys
from anychip_sdk.errors import RecipeInvalid, UsageError

MINIMAL = "version: 1\nname: a\nmodel: {source: /m}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def put(text, name="r.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
        return name

    return put


def read(write, text, sets=(), env=None, name="r.yaml"):
    return load(write(text, name), sets=sets, env=env or {})


def problems(write, text, sets=(), env=None):
    with pytest.raises(RecipeInvalid) as caught:
        read(write, text, sets, env)
    return caught.value.problems


def test_a_minimal_recipe_has_every_default(write):
    recipe = read(write, MINIMAL).recipe
    assert recipe.memory.static_fraction == 0.8
    assert recipe.scheduler.chunked_prefill_size == "auto"
    assert recipe.fusion.policies == "auto"
    assert recipe.server.port == 8000
    assert recipe.backend.requires.driver is None


def test_recipes_are_frozen(write):
    recipe = read(write, MINIMAL).recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.server.port = 1


@pytest.mark.parametrize(
    ("levels", "port", "origin"),
    [
        ((), 8000, "default"),
        (("base",), 1, "base.yaml:2:9"),
        (("base", "recipe"), 2, "r.yaml:6:9"),
        (("base", "recipe", "env"), 3, "ANYCHIP_SET__server__port"),
        (("base", "recipe", "env", "set"), 4, "--set"),
        (("base", "set"), 4, "--set"),
        (("env", "set"), 4, "--set"),
        (("recipe", "set"), 4, "--set"),
    ],
)
def test_set_wins_over_environment_over_recipe_over_base_over_default(write, levels, port, origin):
    write("server:\n  port: 1\n" if "base" in levels else "", "base.yaml")
    text = "extends: [base.yaml]\nversion: 1\nname: a\nmodel: {source: /m}\n"
    text += "server:\n  port: 2\n" if "recipe" in levels else ""
    env = {"ANYCHIP_SET__server__port": "3"} if "env" in levels else {}
    loaded = read(write, text, ["server.port=4"] if "set" in levels else [], env)
    assert loaded.recipe.server.port == port
    assert str(loaded.origins["server.port"]) == origin


def test_a_later_set_wins_over_an_earlier_one(write):
    assert read(write, MINIMAL, ["server.port=1", "server.port=2"]).recipe.server.port == 2


def test_a_set_of_a_section_merges_into_it(write):
    recipe = read(write, MINIMAL + "server: {host: h}\n", ["server={port: 1}"]).recipe
    assert (recipe.server.host, recipe.server.port) == ("h", 1)


def test_a_set_that_is_no_assignment_is_a_usage_error(write):
    for wrong in ("server.port", "=1", "server..port=1"):
        with pytest.raises(UsageError):
            read(write, MINIMAL, [wrong])


def test_values_from_sets_and_variables_stay_text_where_the_key_is_text(write):
    env = {"ANYCHIP_SET__server__served_name": "7", "REV": "0123", "HOST": "true"}
    text = MINIMAL.replace("{source: /m}", '{source: /m, revision: "${REV}"}') + "server: {host: '${HOST}'}\n"
    recipe = read(write, text, ["name=12"], env).recipe
    assert (recipe.name, recipe.model.revision, recipe.server.served_name, recipe.server.host) == (
        "12",
        "0123",
        "7",
        "true",
    )


def test_a_null_puts_the_default_back_and_says_so(write):
    write("server: {port: 1, host: h}\nmemory: {page_size: 16}\n", "base.yaml")
    loaded = read(write, "extends: [base.yaml]\n" + MINIMAL + "server: {port: null}\nmemory:\n")
    assert (loaded.recipe.server.port, loaded.recipe.server.host) == (8000, "h")
    assert loaded.recipe.memory.page_size == "auto"
    assert str(loaded.origins["server.port"]) == "default (null at r.yaml:5:16)"


def test_lists_replace(write):
    write("fusion: {policies: [mha, ffn]}\n", "base.yaml")
    assert read(write, "extends: [base.yaml]\n" + MINIMAL + "fusion: {policies: []}\n").recipe.fusion.policies == ()


def test_later_bases_win_and_diamonds_are_no_cycles(write):
    write("server: {port: 1, host: root}\n", "parts/root.yaml")
    write("extends: [root.yaml]\nserver: {port: 2}\n", "parts/left.yaml")
    write("extends: [root.yaml]\nmemory: {page_size: 4}\n", "parts/right.yaml")
    loaded = read(write, "extends: [parts/left.yaml, parts/right.yaml]\n" + MINIMAL)
    assert (loaded.recipe.server.port, loaded.recipe.memory.page_size) == (1, 4)
    assert str(loaded.origins["server.port"]) == "parts/root.yaml:1:16"


def test_a_required_variable_of_a_base_need_not_be_set_when_the_value_is_overridden(write):
    write("server: {served_name: '${NEEDED}'}\n", "base.yaml")
    assert (
        read(write, "extends: [base.yaml]\n" + MINIMAL + "server: {served_name: n}\n").recipe.server.served_name == "n"
    )


def test_private_keys_are_ignored_everywhere_and_not_interpolated(write):
    text = "x-own: &own {port: 5, x-deep: '${UNSET}'}\n" + MINIMAL + "server: {<<: *own, host: h}\n"
    assert read(write, text).recipe.server.port == 5


def test_merge_keys_lose_to_what_is_written_out_and_the_first_source_wins(write):
    text = "x-a: &a {port: 1, host: a}\nx-b: &b {port: 2, max_queued_requests: 3}\n" + MINIMAL
    server = read(write, text + "server: {<<: [*a, *b], host: own}\n").recipe.server
    assert (server.port, server.host, server.max_queued_requests) == (1, "own", 3)


def test_relative_sources_belong_to_the_file_that_says_them(write, tmp_path):
    write("model: {source: ../m}\n", "parts/base.yaml")
    assert read(write, "extends: [parts/base.yaml]\nversion: 1\nname: a\n").recipe.model.source == str(tmp_path / "m")
    assert read(write, MINIMAL, ["model.source=./n"]).recipe.model.source == str(tmp_path / "n")
    assert read(write, MINIMAL, ["model.source=~/n"]).recipe.model.source == str(Path.home() / "n")


@pytest.mark.parametrize("source", ["hf:Qwen/Qwen3-8B", "modelscope:Qwen/Qwen3-8B", "package:dist/a/b.gguf", "/abs/x"])
def test_schemes_and_absolute_paths_stay(write, source):
    assert read(write, MINIMAL, [f"model.source={source}"]).recipe.model.source == source


def test_the_resolved_recipe_loads_to_the_same_recipe(write):
    import json

    text = (
        MINIMAL + "slo: {ttft_p95: 500ms}\nserver: {api_key: {env: KEY}}\nops: {overrides: [{op: linear, ban: [x]}]}\n"
    )
    loaded = read(write, text)
    again = read(write, json.dumps(loaded.resolved), name="again.yaml")
    assert again.recipe == loaded.recipe
    assert recipe_digest(again) == recipe_digest(loaded)


def test_the_digest_counts_meaning_not_layout(write):
    one = recipe_digest(read(write, MINIMAL + "slo: {ttft_p95: 500ms}\n"))
    same = recipe_digest(read(write, "# words\nslo: {ttft_p95: 0.5s}\nserver: {port: 8000}\n" + MINIMAL))
    other = recipe_digest(read(write, MINIMAL + "slo: {ttft_p95: 501ms}\n"))
    assert one == same != other
    assert len(one) == 64


def test_the_origins_cover_every_key_that_holds_a_value(write):
    loaded = read(write, MINIMAL)
    expected = {k.path for k in all_keys().values() if not k.is_section and "[]" not in k.path}
    assert set(loaded.origins) == expected - {"server.api_key.env", "server.api_key.file"}


def test_a_secret_is_a_reference_and_nothing_reads_it(write):
    loaded = read(write, MINIMAL + "server: {api_key: {env: KEY}}\n", env={"KEY": "hunter2"})
    assert loaded.recipe.server.api_key is not None
    assert loaded.recipe.server.api_key.env == "KEY"
    assert "hunter2" not in repr(loaded)


def test_durations_are_seconds_and_keep_their_text(write):
    slo = read(write, MINIMAL + "slo: {ttft_p95: 500ms, tpot_p95: 1.5s}\n").recipe.slo
    assert (slo.ttft_p95, slo.tpot_p95) == (0.5, 1.5)
    assert str(slo.ttft_p95) == "500ms"


def test_counts_take_binary_multiples(write):
    assert read(write, MINIMAL, ["memory.kv_tokens=32Ki"]).recipe.memory.kv_tokens == 32768
    assert read(write, MINIMAL, ["model.context_length=0.5Ki"]).recipe.model.context_length == 512


def test_unreadable_files_are_clear_errors(write, tmp_path):
    def message(path):
        with pytest.raises(RecipeInvalid) as caught:
            load(path, env={})
        (problem,) = caught.value.problems
        return problem

    write(MINIMAL, "recipe.yaml")
    assert message("recpe.yaml") == "recpe.yaml:1:1  no such file. Did you mean recipe.yaml?"
    assert message(".") == ".:1:1  a directory, expected a file"
    Path("bin.yaml").write_bytes(b"a: \0")
    assert message("bin.yaml") == "bin.yaml:1:1  a binary file, expected YAML text"
    Path("latin.yaml").write_bytes("version: 1\nname: é".encode("latin-1"))
    assert message("latin.yaml") == "latin.yaml:2:7  not UTF-8. Save the file as UTF-8"
    Path("large.yaml").write_bytes(b"#" * (1 << 21))
    assert "larger than" in message("large.yaml")
    write("%YAML 1.1\n---\n" + MINIMAL)
    assert "recipes are YAML 1.2" in message("r.yaml")
    write("a: " + "[" * 50)
    assert "nested more than 24 deep" in message("r.yaml")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_a_clear_error(write):
    Path(write(MINIMAL)).chmod(0)
    with pytest.raises(RecipeInvalid, match="can't be read: Permission denied"):
        load("r.yaml", env={})


def test_a_byte_order_mark_is_fine(write):
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load("bom.yaml", env={}).recipe.name == "a"


def test_the_process_environment_is_the_default(write, monkeypatch):
    monkeypatch.setenv("ANYCHIP_SET__server__port", "7")
    assert load(write(MINIMAL)).recipe.server.port == 7


BOOLEANS = [key.path for key in all_keys().values() if key.is_bool]


def nested(path, text):
    section, _, name = path.rpartition(".")
    return (
        f"{section}: {{name: chip, {name}: {text}}}\n" if section == "backend" else f"{section}: {{{name}: {text}}}\n"
    )


def value_of(loaded, path):
    value = loaded.resolved
    for part in path.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("path", BOOLEANS)
@pytest.mark.parametrize("wanted", [True, False])
def test_every_boolean_is_as_it_was_set(write, path, wanted):
    said, denied = str(wanted).lower(), str(not wanted).lower()
    variable = "ANYCHIP_SET__" + path.replace(".", "__")
    assert value_of(read(write, MINIMAL + nested(path, said)), path) is wanted
    assert value_of(read(write, MINIMAL + nested(path, denied), [f"{path}={said}"]), path) is wanted
    assert value_of(read(write, MINIMAL + nested(path, denied), env={variable: said}), path) is wanted
    loaded = read(write, MINIMAL + nested(path, denied), [f"{path}={said}"], {variable: denied})
    assert value_of(loaded, path) is wanted
    assert str(loaded.origins[path]) == "--set"


@pytest.mark.parametrize("path", BOOLEANS)
@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "0", "1", "'true'", "y"])
def test_no_other_word_is_a_boolean(write, path, word):
    assert f"{path}: found" in problems(write, MINIMAL + nested(path, word))[0]
    assert len(problems(write, MINIMAL + nested(path, "true"), [f"{path}={word}"])) == 1


def test_a_byte_that_is_no_utf_8_is_named_with_its_line_and_column(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"version: 1\nname: caf\xe9\n")
    with pytest.raises(RecipeInvalid, match=rf"^{path}:2:10  not UTF-8"):
        load(path)


def test_a_folder_whose_name_is_no_utf_8_is_refused_where_a_path_goes_through_it(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "r.yaml").write_text(MINIMAL)
    assert load(folder / "r.yaml", env={}).recipe.model.source == "/m"
    (folder / "r.yaml").write_text(MINIMAL.replace("/m", "./m"))
    with pytest.raises(RecipeInvalid, match=r":3:17  model\.source: '.*/caf\\udce9/m' is not UTF-8"):
        load(folder / "r.yaml", env={})
