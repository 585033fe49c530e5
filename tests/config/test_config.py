"""RUN.toml: what is accepted, what is refused and in which words."""

import os
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ringmpi.config import RunConfig, load_config, parse_config, resolved
from ringmpi.config.options import AttentionOptions
from ringmpi.core.record import Recording
from ringmpi.errors import ConfigError

SMALLEST = """
[input]
file = "in.h5"
query = "q"
key = "k"
value = "v"
[output]
file = "out.h5"
"""


def attention(line: str) -> AttentionOptions:
    return parse_config(f"{SMALLEST}[attention]\n{line}").attention


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "run.toml")
    return caught.value.problems


def problem_with(table: str, line: str) -> str:
    """The only problem of the smallest configuration with one line more."""
    (problem,) = problems_of(f"{SMALLEST.replace(f'[{table}]', '')}[{table}]\n{line}")
    return problem


def write(folder: Path, content: str | bytes, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value.problems


# What is accepted


def test_smallest_file_gets_every_default():
    config = parse_config(SMALLEST)
    assert config.attention.mask == "full"
    assert (config.attention.scale, config.attention.softcap) == (None, None)
    assert (config.attention.sink_logits, config.attention.alibi) == (None, None)
    assert (config.ring.sharding, config.ring.schedule, config.ring.placement) == ("auto", "auto", "auto")
    assert (config.backend.name, config.output.verify_rows) == ("auto", 0)


def test_all_options_arrive():
    config = parse_config("""
        input = {file = "data/in.h5", query = "a/q", key = "a/k", value = "a/v"}
        [attention]
        mask = "causal"
        scale = 0.125
        softcap = 50
        sink_logits = [0.5, -inf, 1]
        alibi = "slopes"
        [ring]
        sharding = "striped"
        schedule = "bidirectional"
        placement = "launcher"
        [backend]
        name = "numpy"
        [output]
        file = "out.h5"
        verify_rows = 64
    """)
    assert (config.input.file, config.input.query, config.input.key) == ("data/in.h5", "a/q", "a/k")
    assert (config.attention.mask, config.attention.scale, config.attention.softcap) == ("causal", 0.125, 50.0)
    assert (config.attention.sink_logits, config.attention.alibi) == ((0.5, -float("inf"), 1.0), "slopes")
    assert (config.ring.sharding, config.ring.schedule) == ("striped", "bidirectional")
    assert (config.backend.name, config.output.verify_rows) == ("numpy", 64)


def test_configuration_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        parse_config(SMALLEST).ring.sharding = "zigzag"


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_files_of_every_editor_are_read(tmp_path, prefix, newline):
    path = write(tmp_path, prefix + SMALLEST.replace("\n", newline).encode())
    assert load_config(path) == parse_config(SMALLEST)


def test_names_and_paths_need_no_ascii(tmp_path):
    path = write(tmp_path, SMALLEST.replace("in.h5", "Eingänge/入力.h5"), "läufe ü.toml")
    assert load_config(path).input.file == "Eingänge/入力.h5"


MASKS = [
    '"full"',
    '"causal"',
    "{causal = -3}",
    '{causal = "end"}',
    "{window = [511, 0]}",
    '{window = ["all", 2], offset = "end"}',
    '{documents = {query = "ql"}}',
    '{documents = {query = [3, 0, 5], key = "kl", within = {causal = "end"}}}',
    "{keys = [2, 7]}",
    "{prefix = 3}",
    "{sinks = 4}",
    '{slices = "table"}',
    '{any = [{window = [8, 0]}, {sinks = 4}, {all = ["causal", {keys = [0, 9]}]}]}',
]


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_survives_resolving(mask):
    config = parse_config(f"{SMALLEST}[attention]\nmask = {mask}")
    assert parse_config(resolved(config)) == config


def test_different_masks_stay_different():
    assert len({resolved(parse_config(f"{SMALLEST}[attention]\nmask = {mask}")) for mask in MASKS}) == len(MASKS)


# Resolving

finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
counts = st.integers(0, 1 << 53)
offsets = st.integers(-(1 << 53), 1 << 53) | st.just("end")
lengths = names | st.lists(counts)


def mask_tables(inner: st.SearchStrategy) -> st.SearchStrategy:
    reach = counts | st.just("all")
    return st.one_of(
        st.fixed_dictionaries({"window": st.lists(reach, min_size=2, max_size=2)}, optional={"offset": offsets}),
        st.fixed_dictionaries({"keys": st.lists(counts, min_size=2, max_size=2).map(sorted)}),
        st.fixed_dictionaries(
            {"documents": st.fixed_dictionaries({"query": lengths}, optional={"key": lengths, "within": inner})}
        ),
        *(st.fixed_dictionaries({kind: st.lists(inner, min_size=1, max_size=3)}) for kind in ("all", "any")),
        *(st.fixed_dictionaries({kind: counts}) for kind in ("prefix", "sinks")),
        st.fixed_dictionaries({"slices": names}),
        st.fixed_dictionaries({"causal": offsets}),
    )


masks = st.recursive(st.sampled_from(["full", "causal"]), mask_tables, max_leaves=5)


@given(masks, positive, positive, st.none() | names | st.lists(finite, min_size=1), names)
def test_resolved_text_loads_to_an_equal_configuration(mask, scale, softcap, alibi, name):
    document = {
        "input": {"file": name, "query": name, "key": name, "value": name},
        "attention": {"mask": mask, "scale": scale, "softcap": softcap, "alibi": alibi},
        "output": {"file": "out.h5"},
    }
    config = RunConfig.model_validate(document)
    assert parse_config(resolved(config)) == config


def test_resolved_text_names_every_default():
    text = resolved(parse_config(SMALLEST))
    for line in (
        'mask = "full"',
        'sharding = "auto"',
        'schedule = "auto"',
        "reproducible = false",
        'name = "auto"',
        "verify_rows = 0",
    ):
        assert line in text.splitlines()


# What is refused, and how


@pytest.mark.parametrize("line", ["scale = -1", "scale = 0", "scale = nan", "scale = inf"])
def test_scale_must_be_positive_and_finite(line):
    requirement = "must be a finite number > 0; leave it out for the default 1 / sqrt(head_dim)"
    assert problem_with("attention", line) == f"run.toml: [attention] {line}: {requirement}"


@pytest.mark.parametrize("value", ["0", "-0.5", "inf"])
def test_softcap_must_be_positive_and_finite(value):
    expected = f"run.toml: [attention] softcap = {value}: must be a finite number > 0; leave it out for no cap"
    assert problem_with("attention", f"softcap = {value}") == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('"0.1"', '"0.1" (a string)'),
        ("true", "true (a truth value)"),
        ("[1]", "[1] (a list)"),
        ("{a = 1}", "{a = 1} (a table)"),
        ("2024-01-02", "2024-01-02 (a date or time)"),
    ],
)
def test_wrong_type_is_named_as_found(value, shown):
    assert f"[attention] scale = {shown}: must be a finite number > 0;" in problem_with("attention", f"scale = {value}")


@pytest.mark.parametrize(
    ("table", "line", "required"),
    [
        ("input", 'file = ""', "must be the path of an HDF5 file, an .npz file, a Zarr store or"),
        ("input", "query = 1", "must be the name of a dataset [heads, length, head_dim] or "),
        ("attention", "sink_logits = []", "must be a list of numbers < inf, one per query head, or the name of a "),
        ("attention", "sink_logits = [inf]", "must be a list of numbers < inf"),
        ("attention", "sink_logits = [nan]", "must be a list of numbers < inf"),
        ("attention", "alibi = [0.5, -inf]", "must be a list of finite slopes, one per query head, or the name "),
        ("attention", 'alibi = [0.5, "x"]', "must be a list of finite slopes"),
        ("ring", 'sharding = "block"', 'must be "auto", "contiguous", "zigzag", "striped" or "balanced"; '),
        ("ring", 'schedule = "rings"', 'must be "auto", "ring", "bidirectional", "all-gather" or "broadcast"; '),
        ("ring", "placement = 1", 'must be "auto", "launcher", "measure", or the path of a file that describes the '),
        ("ring", "placement = []", 'must be "auto", "launcher", "measure", or the path of a file that describes the '),
        ("backend", 'name = "cpu"', 'must be "auto", "cuda", "native" or "numpy"; '),
        ("output", 'file = "a\\u0000b"', "must be the path of the HDF5 file to write; "),
        ("output", "verify_rows = -1", "must be a whole number of rows >= 0; "),
        ("output", "verify_rows = 1.0", "must be a whole number of rows >= 0; "),
    ],
)
def test_message_says_found_and_required(table, line, required):
    keys = {"input": 'file = "f"\nquery = "q"\nkey = "k"\nvalue = "v"', "output": 'file = "out.h5"'}
    tables = {"input": "", "output": ""} | {name: text for name, text in keys.items() if name != table}
    others = "\n".join(old for old in keys.get(table, "").splitlines() if old.split()[0] != line.split()[0])
    tables[table] = f"{others}\n{line}"
    (problem,) = problems_of("\n".join(f"[{name}]\n{text}" for name, text in tables.items()))
    assert problem.startswith(f"run.toml: [{table}] {line.split(' = ')[0]} = ")
    assert required in problem


@pytest.mark.parametrize(
    ("mask", "where", "said"),
    [
        ('"casual"', 'mask = "casual"', "did you mean causal?"),
        ("{windw = [1, 2]}", "mask = {windw = [1, 2]}", "did you mean window?"),
        ("{}", "mask = {}", 'write for example mask = "causal"'),
        ("3", "mask = 3 (a whole number)", 'must be a mask: "full", "causal" or a table that holds one of causal, '),
        ("{causal = 0, keys = [1, 2]}", "mask = {causal", "this one holds causal and keys; join masks with {all"),
        ("{causal = 1.5}", "mask.causal = 1.5", 'must be a whole number of positions, or "end"; '),
        ('{causal = "start"}', 'mask.causal = "start"', 'must be a whole number of positions, or "end"; '),
        ("{causal = 9007199254740993}", "mask.causal = 9007199254740993", "must be a whole number of positions"),
        ("{causal = 0, offset = 1}", "mask.offset", "unknown key; known here: causal"),
        ("{window = [1]}", "mask.window = [1]", "must be [left, right], two whole numbers of positions >= 0, "),
        ("{window = [-1, 0]}", "mask.window = [-1, 0]", "must be [left, right], two whole numbers of positions >= 0, "),
        ("{window = [1, 0], ofset = 3}", "mask.ofset", "unknown key; did you mean offset? known here: window, offset"),
        ("{keys = [3, 2]}", "mask.keys = [3, 2]", "must be [start, stop], two positions, 0 <= start <= stop; "),
        ("{prefix = -1}", "mask.prefix = -1", "must be a whole number of keys >= 0; "),
        ("{sinks = true}", "mask.sinks = true (a truth value)", "must be a whole number of keys >= 0; "),
        ("{slices = [[0, 1]]}", "mask.slices = [[0, 1]] (a list)", "must be the name of a dataset [n, 6] of whole "),
        ("{documents = [3]}", "mask.documents = [3] (a list)", "write for example {documents = {query = [1000"),
        ("{documents = {}}", "mask.documents.query", "is missing: it has no default; add query = ..."),
        ("{documents = {query = [-1]}}", "mask.documents.query = [-1]", "must be the name of a dataset of document "),
        ('{documents = {query = "a", within = "f"}}', 'mask.documents.within = "f"', "must be a mask: "),
        ("{all = []}", "mask.all = []", "must be a list of at least one mask; "),
        ('{any = "full"}', 'mask.any = "full" (a string)', "must be a list of at least one mask; "),
        ('{any = ["full", {all = [{keys = [1]}]}]}', "mask.any[1].all[0].keys = [1]", "must be [start, stop], "),
    ],
)
def test_mask_message_leads_to_the_spot(mask, where, said):
    problem = problem_with("attention", f"mask = {mask}")
    assert problem.startswith(f"run.toml: [attention] {where}")
    assert said in problem


@pytest.mark.parametrize(
    ("options", "where", "said"),
    [
        ("rows = false", "[record] = {rows = false}", "must be a table that asks for something; set rows = true"),
        ("rows = 1", "[record] rows = 1", "must be true or false; leave it out for true"),
        ("sinks = 0", "[record] sinks = 0", "must be a whole number of keys >= 1; leave it out for the first 4 keys"),
        ("sinks = true", "[record] sinks = true", "must be a whole number of keys >= 1"),
        ("rows = false\nreceived = true\nsinks = 3", "[record] = {", "must be a table with rows = true where it has"),
        ("top_keys = 3", "[record] = {top_keys = 3}", "must be a table with top_rows where it has top_keys; name"),
        ("map_block = 0", "[record] map_block = 0", "must be a whole number of positions >= 1"),
        (
            "top_rows = [-1]",
            "[record] top_rows = [-1]",
            "must be a list of at least one query position, or the name of a",
        ),
        ("top_rows = []", "[record] top_rows = []", "must be a list of at least one query position, or the name of a"),
        ("row = true", "[record] row", "did you mean rows?"),
    ],
)
def test_what_cannot_be_recorded_is_said(options, where, said):
    problem = problem_with("record", options)
    assert problem.startswith(f"run.toml: {where}")
    assert said in problem


def test_an_empty_table_records_rows_and_the_first_four_keys():
    assert parse_config(SMALLEST).record is None
    record = parse_config(SMALLEST + "[record]").record
    assert record.recording == Recording(4)
    assert not record.has_late_record
    assert parse_config(SMALLEST + "[record]\nrows = false\nreceived = true").record.recording is None


def test_unknown_key_names_the_nearest():
    expected = "unknown key; did you mean scale? known here: mask, scale, softcap, sink_logits, alibi, dropout, seed"
    assert problem_with("attention", "scael = 1") == f"run.toml: [attention] scael: {expected}"


def test_capitals_do_not_hide_the_nearest():
    assert "unknown key; did you mean scale?" in problem_with("attention", "SCALE = 1")


def test_unknown_key_like_no_other_names_the_known_ones():
    assert (
        problem_with("ring", "xyz = 1")
        == "run.toml: [ring] xyz: unknown key; known here: sharding, schedule, reproducible, block, placement"
    )


def test_key_in_the_wrong_table_is_sent_home():
    assert "[ring] softcap: unknown key; softcap belongs to [attention]; known here:" in problem_with(
        "ring", "softcap = 1"
    )


def test_key_outside_the_tables_is_sent_home():
    (problem,) = problems_of('mask = "causal"\n' + SMALLEST)
    assert problem.startswith("run.toml: mask: unknown key outside the tables; mask belongs to [attention]; ")


def test_unknown_table_names_the_nearest():
    expected = (
        "unknown table; did you mean attention? "
        "this version has [input], [attention], [ring], [backend], [backward], [record], [output], [checkpoint]"
    )
    assert problem_with("Atention", "scale = 1") == f"run.toml: [Atention]: {expected}"


def test_missing_tables_and_keys_are_named():
    assert problems_of('[input]\nfile = "a"\nquery = "q"\nvalue = "v"') == (
        "run.toml: [input] key is missing: it has no default; add key = ...",
        "run.toml: [output] is missing: it has no default; add the table with file",
    )


def test_value_in_place_of_a_table_is_refused():
    (problem,) = problems_of("ring = 3\n" + SMALLEST)
    assert (
        problem
        == "run.toml: ring = 3 (a whole number): must be a table; it takes sharding, schedule, reproducible, block, "
        "placement"
    )


@pytest.mark.parametrize(
    ("table", "line", "told"),
    [
        ("backward", 'grad_output = "do"\ngrad_sink_logits = true', "[backward] grad_sink_logits = true"),
        ("backward", 'grad_output = "do"\ngrad_alibi_slopes = true', "[backward] grad_alibi_slopes = true"),
        ("ring", 'schedule = "two-level"', '[ring] schedule = "two-level"'),
    ],
)
def test_what_this_version_lacks_is_said_and_not_ignored(table, line, told):
    problem = problem_with(table, line)
    assert problem.startswith(f"run.toml: {told}: this version does not have it yet; ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("every_seconds = 600", "[checkpoint] directory is missing: it has no default"),
        (
            'directory = "c"\nevery_seconds = 0',
            "[checkpoint] every_seconds = 0: must be a finite number of seconds > 0",
        ),
        ('directory = "c"\nevery_second = 1', "[checkpoint] every_second: unknown key; did you mean every_seconds?"),
    ],
)
def test_checkpoints_need_a_directory_and_a_time(line, told):
    assert told in problem_with("checkpoint", line)


def test_without_the_table_nothing_is_kept():
    assert parse_config(SMALLEST).checkpoint is None
    kept = parse_config(SMALLEST + '[checkpoint]\ndirectory = "c"').checkpoint
    assert (kept.directory, kept.every_seconds) == ("c", 600)


def test_the_layout_is_merged_or_virtual():
    assert [parse_config(SMALLEST + line).output.layout for line in ("", 'layout = "virtual"')] == ["merged", "virtual"]
    (problem,) = problems_of(SMALLEST + 'layout = "split"')
    assert problem.startswith('run.toml: [output] layout = "split": must be "merged" or "virtual"; leave it out')


def test_all_problems_come_at_once():
    text = '[input]\nfile = 3\nquery = "q"\nkey = "k"\n[atention]\n[ring]\nsharding = 1\n[backend]\nname = "torch"'
    told = "\n".join(problems_of(text))
    for part in ("file = 3", "value is missing", "atention", "sharding = 1", '"torch"', "[output] is missing"):
        assert part in told
    assert len(problems_of(text)) == 6


def test_long_values_are_cut():
    problem = problem_with("attention", f"scale = {list(range(10_000))}")
    assert "[0, 1, 2, " in problem
    assert "... (a list): must be" in problem
    assert len(problem) < 250


# Files that are no configuration


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[input\n", "not TOML: expected ']' at the end of a table declaration (at line 1, column 7); expected"),
        (b"[a]\nb = 1\nb = 2\n", "not TOML: cannot overwrite a value (at line 3, column 6); expected"),
        (b"# ok\na = '\xff'\n", "byte 0xff in line 2 is not UTF-8, which TOML requires. Save the file as UTF-8."),
        ("a = 1\n".encode("utf-16"), "byte 0xff in line 1 is not UTF-8"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file; expected a TOML file. Name this one in it, as [input]"),
        (b"a = " + b"1" * 5000, "not TOML: a number has too many digits; expected"),
        (b"a = " + b"[" * 5000, "lists and tables nested deeper than 40; no option needs that."),
        (b"a = " + b"[" * 41 + b"]" * 41, "lists and tables nested deeper than 40; no option needs that."),
        (b"a" + b".a" * 2000 + b" = 1", "lists and tables nested deeper than 40; no option needs that."),
        (b"#" * (1 << 20) + b"\n", "larger than 1 MiB; expected a TOML file. Put long lists into datasets."),
    ],
    ids=["unclosed", "twice", "latin", "utf-16", "hdf5", "digits", "open", "deep", "dotted", "large"],
)
def test_file_that_is_no_configuration_is_told_in_one_line(tmp_path, content, said):
    path = write(tmp_path, content)
    (problem,) = refusal(path)
    assert problem.startswith(f"{path}: {said}")
    assert len(problem.splitlines()) == 1


def test_deepest_mask_that_is_read_can_be_written():
    mask = "{all = [" * 19 + '"full"' + "]}" * 19
    config = parse_config(f"{SMALLEST}[attention]\nmask = {mask}")
    assert parse_config(resolved(config)) == config


def test_missing_file_names_its_neighbours(tmp_path):
    write(tmp_path, SMALLEST, "run.toml")
    (problem,) = refusal(tmp_path / "runs.toml")
    assert problem.startswith(f"{tmp_path / 'runs.toml'}: no such file; expected a TOML file. ")
    assert f"did you mean {tmp_path / 'run.toml'}?" in problem


def test_missing_file_in_an_empty_folder_says_what_to_check(tmp_path):
    assert refusal(tmp_path / "no" / "a.toml")[0].endswith("Check the path and the working directory.")


def test_folder_is_no_configuration(tmp_path):
    assert refusal(tmp_path) == (f"{tmp_path}: is a directory; expected a TOML file that can be read.",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file_is_told(tmp_path):
    path = write(tmp_path, SMALLEST)
    path.chmod(0)
    assert refusal(path) == (f"{path}: permission denied; expected a TOML file that can be read.",)


def test_impossible_path_is_told():
    assert refusal(Path("a\0b.toml"))[0].startswith("a\\x00b.toml: embedded null byte; expected")


def test_output_is_never_the_input(tmp_path):
    (tmp_path / "link.h5").symlink_to(tmp_path / "in.h5")
    path = write(tmp_path, SMALLEST.replace("in.h5", str(tmp_path / "in.h5")))
    (problem,) = refusal(path, f"output.file={tmp_path / 'link.h5'}")
    assert problem.endswith(f'[output] file = "{tmp_path / "link.h5"}": it is the [input] file; name another file')


def test_output_is_never_the_configuration(tmp_path):
    path = write(tmp_path, SMALLEST)
    (problem,) = refusal(path, f"output.file={tmp_path}/../{tmp_path.name}/run.toml")
    assert "it is this configuration; name another file" in problem


def test_loop_of_links_is_no_traceback(tmp_path):
    (tmp_path / "loop.h5").symlink_to(tmp_path / "loop.h5")
    path = write(tmp_path, SMALLEST)
    assert load_config(path, [f"output.file={tmp_path / 'loop.h5'}"]).input.file == "in.h5"


# Overrides


@pytest.mark.parametrize(
    ("override", "table", "key", "value"),
    [
        ("attention.mask=causal", "attention", "mask", "causal"),
        ('attention.mask="causal"', "attention", "mask", "causal"),
        ("attention.scale=0.5", "attention", "scale", 0.5),
        ("attention.scale = 2", "attention", "scale", 2.0),
        ("attention.sink_logits=[1, -inf]", "attention", "sink_logits", (1.0, -float("inf"))),
        ("output.file=out/my run=2.h5", "output", "file", "out/my run=2.h5"),
        ("output.file=1.h5", "output", "file", "1.h5"),
        ("output.verify_rows=8", "output", "verify_rows", 8),
        ("input.query=läufe/q", "input", "query", "läufe/q"),
    ],
)
def test_override_replaces_the_option(tmp_path, override, table, key, value):
    config = load_config(write(tmp_path, SMALLEST), [override])
    assert getattr(getattr(config, table), key) == value


def test_override_takes_a_mask_table(tmp_path):
    config = load_config(write(tmp_path, SMALLEST), ["attention.mask={window=[511,0]}"])
    assert config.attention == attention("mask = {window = [511, 0]}")


def test_last_override_of_a_key_holds(tmp_path):
    config = load_config(write(tmp_path, SMALLEST), ["ring.sharding=striped", "ring.sharding=zigzag"])
    assert config.ring.sharding == "zigzag"


def test_override_mends_the_file(tmp_path):
    path = write(tmp_path, SMALLEST + '[attention]\nmask = "casual"')
    assert load_config(path, ["attention.mask=causal"]).attention.mask == "causal"


@pytest.mark.parametrize("override", ["attention.mask", "mask=full", "=full", ".mask=full", "attention.=full", ""])
def test_override_without_table_key_or_value_is_refused(tmp_path, override):
    expected = f"--set {override}: must be TABLE.KEY=VALUE; write for example --set attention.mask=full"
    assert refusal(write(tmp_path, SMALLEST), override) == (expected,)


@pytest.mark.parametrize("value", ["{causal=end", "{causal=end}", '"full', "[1,", "'x"])
def test_override_that_opens_and_does_not_close_is_refused(tmp_path, value):
    (problem,) = refusal(write(tmp_path, SMALLEST), f"attention.mask={value}")
    assert problem.startswith(f"--set attention.mask={value}: the value is not TOML; ")


def test_override_brings_in_one_option_only(tmp_path):
    (problem,) = refusal(write(tmp_path, SMALLEST), "attention.scale=1\n[ring]\nsharding = 'zigzag'")
    assert problem.startswith("--set attention.scale=1\\n[ring]\\n")
    assert "must be a finite number > 0" in problem


def test_problem_of_an_override_names_it(tmp_path):
    path = write(tmp_path, SMALLEST + "[attention]\nscale = -1")
    problems = refusal(path, "ring.sharding=zigzg", "ring.schedule=two-level", "attention.scael=1", "x", "rings.a=1")
    assert [problem.partition(": ")[0] for problem in problems] == [
        "--set x",
        "--set ring.schedule=two-level",
        str(path),
        "--set attention.scael=1",
        "--set ring.sharding=zigzg",
        "--set rings.a=1",
    ]


def test_problem_inside_an_overriding_table_names_the_override(tmp_path):
    (problem,) = refusal(write(tmp_path, SMALLEST), "attention.mask={all=[{keys=[1]}]}")
    assert problem.startswith("--set attention.mask={all=[{keys=[1]}]}: [attention] mask.all[0].keys = [1]: must be")


def test_list_of_wrong_items_is_not_called_a_wrong_type():
    assert "[attention] alibi = [0.5, true]: must be" in problem_with("attention", "alibi = [0.5, true]")


def test_override_of_a_table_that_is_none_leaves_the_problem_of_the_file(tmp_path):
    path = write(tmp_path, "ring = 3\n" + SMALLEST)
    (problem,) = refusal(path, "ring.sharding=zigzag")
    assert problem.startswith(f"{path}: ring = 3 (a whole number): must be a table")


def test_names_that_are_no_text_are_refused(tmp_path):
    (problem,) = refusal(write(tmp_path, SMALLEST), "input.file=\udcff")
    assert problem.startswith("--set input.file=\\udcff: [input] file = ")


# No bytes lead to a traceback

toml_values = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8) | st.dates() | masks,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(sorted({*AttentionOptions.model_fields, "file", "query", "sharding", "name", "layout"}))
tables = st.sampled_from([*RunConfig.model_fields])
documents = st.dictionaries(
    tables | st.text(max_size=6), st.dictionaries(keys | st.text(max_size=6), toml_values, max_size=4) | toml_values
)


@st.composite
def damaged_files(draw):
    """A good file of which a piece was replaced by other bytes."""
    content = (SMALLEST + f"[attention]\nmask = {draw(st.sampled_from(MASKS))}\nscale = 1.5\n").encode()
    start = draw(st.integers(0, len(content)))
    stop = draw(st.integers(start, min(len(content), start + 12)))
    piece = draw(
        st.binary(max_size=6) | st.sampled_from([b"\r", b"=", b"'", b'"""', b"[[", b"{", b"1e9", b"\xef\xbb\xbf"])
    )
    return content[:start] + piece + content[stop:]


def outcome(path: Path, *overrides: str) -> RunConfig | tuple[str, ...]:
    try:
        return load_config(path, overrides)
    except ConfigError as error:
        return error.problems


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.binary(max_size=64) | documents.map(lambda document: tomli_w.dumps(document).encode()) | damaged_files())
@example(b"attention.mask.all = [{all = [[]]}, {documents.documents = {documents = 1}}]")
@example(b'"a\\nb".c = 1\n[ring]\n"\\u2028" = 1\nsharding = "\\u0085"')
@example(b"attention.scale = 0x" + b"f" * 5000)
@example(b"a = 1979-05-27T07:32:00.999999999999999Z")
def test_any_bytes_give_a_configuration_or_plain_problems(tmp_path, content):
    path = write(tmp_path, content)
    found = outcome(path)
    if isinstance(found, RunConfig):
        assert parse_config(resolved(found)) == found
        return
    assert found
    for problem in found:
        assert problem.startswith(f"{path}: ")
        assert problem.isprintable()
        assert "pydantic" not in problem


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20) | st.builds("{}={}".format, st.from_regex(r"[a-z]+\.[a-z]+", fullmatch=True), st.text()))
def test_any_override_gives_a_configuration_or_problems_that_name_it(tmp_path, override):
    found = outcome(write(tmp_path, SMALLEST), override)
    if not isinstance(found, RunConfig):
        assert found
        assert all(problem.isprintable() and problem.startswith("--set ") for problem in found)


def test_gradients_are_asked_for_by_a_table():
    assert parse_config(SMALLEST).backward is None
    config = parse_config(SMALLEST + '[backward]\ngrad_output = "do"\n')
    assert config.backward.model_dump() == {"grad_output": "do", "grad_log_sum_exp": None, "travel": "auto"}
    assert parse_config(resolved(config)) == config


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            'grad_outptu = "do"',
            "unknown key; did you mean grad_output? known here: grad_output, grad_log_sum_exp, travel",
        ),
        ("grad_output = 3", "grad_output = 3 (a whole number): must be the name of a dataset"),
        ('grad_output = "do"\nmask = "full"', "mask: unknown key; mask belongs to [attention]"),
    ],
)
def test_faults_of_the_table_of_gradients(line, says):
    assert any(says in problem for problem in problems_of(f"{SMALLEST}[backward]\n{line}\n"))
