"""Bad input, every kind: one message, from rank 0, the same exit code on all ranks, before any rank works.

`REFUSED` is the table of docs/bad-input.md: input, message, exit code. Faults of the configuration alone, of which
there are many more, are in tests/config/test_config.py; those of files in tests/storage.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.launched.conftest import ROOT

REFUSALS = str(Path(__file__).with_name("refusals.py"))
RANKS = 3
LENGTH = 64
HUGE = 10**40


@dataclass(frozen=True)
class Refused:
    """What is wrong, in words; what makes it so; what is said, as a regular expression; the exit code."""

    what: str
    settings: dict[str, object]
    says: str
    code: int


def mask(text):
    return {"attention.mask": text}


def arrays(query="q", key="k", value="v"):
    return {"input.query": query, "input.key": key, "input.value": value}


def upstream(name):
    return {"backward.grad_output": name}


REFUSED = [
    # Files
    Refused("input that is missing", {"input.file": "absent.h5"}, "cannot open absent.h5: No such file", 3),
    Refused("input that is a directory of other things", {"input.file": "empty"}, "is a directory with neither", 3),
    Refused("input that is not an HDF5 file", {"input.file": "text.h5"}, r"text\.h5: .*It is not an HDF5 file", 3),
    Refused("input that was cut off", {"input.file": "cut.h5"}, r"cut\.h5: .*was cut off while", 3),
    Refused("input that is an empty file", {"input.file": "nothing.h5"}, r"nothing\.h5: .*It is not an HDF5 file", 3),
    Refused("input that is a single .npy file", {"input.file": "q.npy"}, "is a single array; .*Give the directory", 3),
    Refused(
        "archive that is compressed as a whole", {"input.file": "c.npz"} | arrays("q", "q", "q"), "numpy.savez inst", 3
    ),
    Refused("dataset that is missing", arrays("kk"), "has no dataset 'kk'. Did you mean k", 3),
    Refused("group instead of a dataset", arrays("group"), "has a group, not a dataset, 'group'", 3),
    Refused(
        "link that leads nowhere", arrays("link"), "has 'link' as a link to /x in gone.h5, which does not exist", 3
    ),
    Refused("virtual dataset without its source", arrays("virtual"), r"1 of its 1 sources are missing: lost\.h5:x", 3),
    # Arrays
    Refused(
        "2 axes", arrays("axes2"), r"axes2 .* has 2 axes \(64, 16\); expected \[\(batch,\) heads, length, dim\]", 3
    ),
    Refused("5 axes", arrays("axes5"), r"has 5 axes \(1, 1, 4, 64, 16\); expected", 3),
    Refused("a single number", arrays("scalar"), r"scalar of .*has 0 axes \(\); expected", 3),
    Refused("whole numbers", arrays("int32"), "int32 of .*holds int32; expected float16, bfloat16", 3),
    Refused("complex numbers", arrays("complex"), "holds complex64; expected float16", 3),
    Refused("truth values", arrays("bool"), "holds bool; expected float16", 3),
    Refused("strings", arrays("strings"), "holds strings or objects; expected float16", 3),
    Refused("records", arrays("compound"), r"holds \[\('a', '<f4'\)\]; expected float16", 3),
    Refused("floats of 128 bits", arrays("wide"), "holds .*expected float16", 3),
    Refused("dtypes that differ", arrays(key="k64"), "have dtypes float32, float64, float32; all must be the same", 2),
    Refused("a batch axis in one array only", arrays("batched"), "have 4, 3 and 3 axes; all three need", 2),
    Refused("batch sizes that differ", arrays("batched", "batch2", "batch2"), "batch sizes differ: query 3, key 2", 2),
    Refused("key and value of different lengths", arrays(value="short"), "key has length 64 and value 60", 2),
    Refused("key and value with different numbers of heads", arrays(value="heads3"), "key has 2 heads and value 3", 2),
    Refused("query and key of different head_dim", arrays(key="dim8"), "query has head_dim 16 and key 8", 2),
    Refused(
        "heads that do not divide", arrays("q", "heads3", "heads3"), "4 query heads do not divide into groups for 3", 2
    ),
    Refused(
        "more key heads than query heads", arrays("k", "q", "q"), "2 query heads do not divide into groups for 4", 2
    ),
    Refused("no heads at all", arrays("none", "none", "none"), "batch, heads and head_dim must be at least 1", 2),
    Refused("head_dim 0", arrays("dim0", "dim0", "dim0"), "batch, heads and head_dim must be at least 1", 2),
    # Masks
    Refused(
        "documents that do not sum", mask("{documents={query=[30, 30]}}"), "query lengths sum to 60, but .* is 64", 2
    ),
    Refused("documents of a dataset that do not sum", mask('{documents={query="lengths"}}'), "lengths sum to 63", 2),
    Refused("documents of negative length", mask('{documents={query="negative"}}'), "whole numbers, each from 0", 2),
    Refused("documents of fractions", mask('{documents={query="fractions"}}'), "whole numbers, each from 0", 2),
    Refused("documents beyond 64 bits", mask('{documents={query="beyond"}}'), "expected at most 2.63 - 1", 3),
    Refused(
        "documents that wrap to the right sum",
        mask('{documents={query="wrapping"}}'),
        "whole numbers, each from 0 to 2.53",
        2,
    ),
    Refused(
        "keys of a different number of documents",
        mask("{documents={query=[60,4], key=[64]}}"),
        "2 query lengths and 1 key lengths",
        2,
    ),
    Refused(
        "documents in a dataset of strings",
        mask('{documents={query="strings"}}'),
        "strings of .*expected integers",
        3,
    ),
    Refused("slices that are missing", mask('{slices="nowhere"}'), "no dataset 'nowhere'", 3),
    Refused(
        "slices of five columns", mask('{slices="columns5"}'), r"shape \(2, 5\).*expected an integer table \[n, 6\]", 2
    ),
    Refused("slices on one axis", mask('{slices="lengths"}'), r"shape \(2,\).*integer table \[n, 6\]", 2),
    Refused("slices of fractions", mask('{slices="fractions6"}'), "dtype float64; expected an integer table", 2),
    Refused("slices with absurd bounds", mask('{slices="absurd"}'), "must lie within -2.60 and 2.60", 2),
    Refused(
        "a window that is negative", mask("{window=[-1, 0]}"), r"mask.window = \[-1, 0\]: must be \[left, right\]", 2
    ),
    Refused(
        "a window beyond all positions",
        mask(f"{{window=[{HUGE}, 0]}}"),
        r"mask.window = \[a whole number of 133 bits, 0\]: must be",
        2,
    ),
    Refused("keys that end before they start", mask("{keys=[9, 3]}"), r"mask.keys = \[9, 3\]: must be", 2),
    Refused("a prefix below 0", mask("{prefix=-3}"), "mask.prefix = -3: must be", 2),
    Refused("a mask that is not a mask", mask("casual"), r'mask = "casual": .*causal', 2),
    # Numbers and options
    Refused(
        "an infinite scale",
        {"attention.scale": "1e400"},
        r"\[attention\] scale = inf: must be a finite number > 0",
        2,
    ),
    Refused("a scale of NaN", {"attention.scale": "nan"}, r"\[attention\] scale = nan: must be a finite", 2),
    Refused("a scale below 0", {"attention.scale": -1}, r"\[attention\] scale = -1: must be a finite", 2),
    Refused("a softcap of 0", {"attention.softcap": 0}, r"\[attention\] softcap = 0: must be a finite number > 0", 2),
    Refused("too few sinks", {"attention.sink_logits": "[1.0]"}, r"sink_logits has shape \(1,\); .*\(4,\)", 2),
    Refused(
        "an infinite sink",
        {"attention.sink_logits": "[inf, 0, 0, 0]"},
        "sink_logits.* must be a list of numbers < inf",
        2,
    ),
    Refused("slopes that are missing", {"attention.alibi": "nowhere"}, "no dataset 'nowhere'", 3),
    Refused(
        "infinity in a dataset of slopes",
        {"attention.alibi": "infinite"},
        "alibi_slopes holds .*not allowed. Give finite numbers",
        2,
    ),
    Refused(
        "NaN in a dataset of sinks",
        {"attention.sink_logits": "nans"},
        "sink_logits holds .*NaN and inf are not allowed",
        2,
    ),
    Refused("slopes on two axes", {"attention.alibi": "columns5"}, r"alibi_slopes has shape \(2, 5\)", 2),
    Refused("an unknown sharding", {"ring.sharding": "zigzack"}, r'sharding = "zigzack": must be .*"zigzag"', 2),
    Refused("an unknown key", {"attention.scael": 1}, "scael: unknown key; did you mean scale", 2),
    Refused("an unknown table", {"outptu.file": "x.h5"}, r"\[outptu\]: unknown table; did you mean output", 2),
    Refused(
        "rows to verify below 0", {"output.verify_rows": -1}, "verify_rows = -1: must be a whole number of rows >= 0", 2
    ),
    Refused("absurdly many rows to verify", {"output.verify_rows": HUGE}, "verify_rows = .*must be a whole number", 2),
    Refused(
        "a backend that does not exist",
        {"backend.name": "torch"},
        'must be "auto", "cuda", "native" or "numpy"',
        2,
    ),
    # Gradients
    Refused(
        "[backward] without grad_output", {"backward.travel": "keys"}, "grad_output is missing: it has no default", 2
    ),
    Refused("grad_output that is missing", upstream("nowhere"), "no dataset 'nowhere'", 3),
    Refused(
        "grad_output of a different shape",
        upstream("k"),
        r"\[backward\] grad_output: dataset /k is \(2, 64, 16\) float32; expected \(4, 64, 16\) float32, shape",
        2,
    ),
    Refused("grad_output of a different dtype", upstream("q64"), r"\(4, 64, 16\) float64; expected .* float32", 2),
    Refused("grad_output with a batch axis", upstream("batched"), r"\(3, 4, 64, 16\) float32; expected \(4, 64", 2),
    Refused("grad_output of whole numbers", upstream("int32"), "int32 of .*holds int32; expected float16", 3),
    Refused(
        "grad_log_sum_exp with a last axis",
        upstream("q") | {"backward.grad_log_sum_exp": "q"},
        r"\(4, 64, 16\) float32; expected \(4, 64\) float32, shape and dtype of log_sum_exp",
        2,
    ),
    Refused(
        "grad_log_sum_exp of a different dtype",
        upstream("q") | {"backward.grad_log_sum_exp": "rows64"},
        r"grad_log_sum_exp: dataset /rows64 is \(4, 64\) float64; expected \(4, 64\) float32",
        2,
    ),
    Refused(
        "a side that cannot travel", upstream("q") | {"backward.travel": "both"}, 'travel = "both": must be "auto"', 2
    ),
    Refused(
        "the gradient of sinks",
        upstream("q") | {"backward.grad_sink_logits": "true"},
        "grad_sink_logits = true: this version does not have it yet",
        2,
    ),
    # Output
    Refused("output that exists", {"output.file": "precious.h5"}, "precious.h5 exists .* or give --force", 3),
    Refused("output that is a directory", {"output.file": "empty"}, "output empty is a directory or device", 3),
    Refused("output that is a device", {"output.file": "/dev/null"}, "output /dev/null is a directory or device", 3),
    Refused(
        "output in a file", {"output.file": "text.h5/out.h5"}, "cannot write to the directory of text.h5/out.h5", 3
    ),
    Refused(
        "output where nothing can be made", {"output.file": "/proc/none/out.h5"}, "directory of /proc/none/out.h5", 3
    ),
    Refused("output that is the input", {"output.file": "in.h5"}, r"it is the \[input\] file; name another file", 2),
    Refused("output that is the configuration", {"output.file": "run.toml"}, "it is this configuration", 2),
]


def write_inputs(folder):
    rng = np.random.default_rng(1)

    def numbers(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    with h5py.File(folder / "in.h5", "w") as file:
        shapes = {
            "q": (4, LENGTH, 16), "k": (2, LENGTH, 16), "v": (2, LENGTH, 16), "axes2": (LENGTH, 16),
            "axes5": (1, 1, 4, LENGTH, 16), "batched": (3, 4, LENGTH, 16), "batch2": (2, 2, LENGTH, 16),
            "short": (2, 60, 16), "heads3": (3, LENGTH, 16), "dim8": (2, LENGTH, 8), "none": (0, LENGTH, 16),
            "dim0": (2, LENGTH, 0), "group/inside": (1,),
        }  # fmt: skip
        for name, shape in shapes.items():
            file[name] = numbers(*shape)
        file["scalar"] = 1.5
        file["q64"], file["rows64"] = np.ones((4, LENGTH, 16)), np.ones((4, LENGTH))
        file["k64"] = numbers(2, LENGTH, 16).astype(np.float64)
        file["wide"] = numbers(2, LENGTH, 16).astype(np.longdouble)
        file["int32"], file["complex"] = np.ones((4, LENGTH, 16), np.int32), np.ones((4, LENGTH, 16), np.complex64)
        file["bool"], file["strings"] = np.ones((4, LENGTH, 16), bool), np.array(["a", "b"], object)
        file["compound"] = np.zeros((4, LENGTH, 16), [("a", "f4")])
        file["link"] = h5py.ExternalLink("gone.h5", "/x")
        layout = h5py.VirtualLayout((4, LENGTH, 16), "f4")
        layout[...] = h5py.VirtualSource("lost.h5", "x", (4, LENGTH, 16))
        file.create_virtual_dataset("virtual", layout)
        file["lengths"], file["negative"], file["fractions"] = (
            np.array([30, 33]),
            np.array([-1, 65]),
            np.array([31.5, 32.5]),
        )
        file["beyond"] = np.array([1 << 63, 64], np.uint64)
        file["wrapping"] = np.array([(1 << 63) - 1, (1 << 63) - 1, 66])
        file["columns5"], file["fractions6"] = np.zeros((2, 5), int), np.zeros((2, 6))
        file["absurd"] = np.array([[0, LENGTH, 0, LENGTH, -(1 << 62), 1 << 62]])
        file["infinite"], file["nans"] = np.array([1, np.inf, 1, 1]), np.array([1, 1, np.nan, 1])
    (folder / "empty").mkdir()
    (folder / "text.h5").write_text("hello")
    (folder / "nothing.h5").touch()
    (folder / "precious.h5").write_text("precious")
    (folder / "cut.h5").write_bytes((folder / "in.h5").read_bytes()[:-1000])
    np.save(folder / "q.npy", numbers(4, LENGTH, 16))
    np.savez_compressed(folder / "c.npz", q=numbers(4, LENGTH, 16))
    (folder / "run.toml").write_text(
        '[input]\nfile = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "out.h5"\n'
    )


@pytest.fixture(scope="module")
def outcomes(mpirun, tmp_path_factory):
    """All refusals, in one MPI job: by what is wrong, the outcome of every rank; and the folder afterwards."""
    folder = tmp_path_factory.mktemp("bad input")
    write_inputs(folder)
    settings = [[x for key, value in bad.settings.items() for x in ("--set", f"{key}={value}")] for bad in REFUSED]
    (folder / "commands.json").write_text(json.dumps([["run", "run.toml", *options] for options in settings]))
    done = mpirun(RANKS, "commands.json", program=(REFUSALS,), cwd=folder)
    assert done.code == 0, done.err
    return dict(zip([bad.what for bad in REFUSED], json.loads(done.out), strict=True)), folder


@pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: bad.what)
def test_it_is_refused_once_by_all_ranks_before_any_works(outcomes, bad):
    codes, said, calls = zip(*outcomes[0][bad.what], strict=True)
    assert codes == (bad.code,) * RANKS
    first, *others = said
    assert re.search(bad.says, first), first
    assert first.count("ringmpi: error: ") == len(first.splitlines()) == 1
    assert "Traceback" not in first
    assert not any(others), others
    assert not any(calls)


def test_nothing_was_written(outcomes):
    _, folder = outcomes
    names = {path.name for path in folder.iterdir()}
    assert not {name for name in names if name.startswith("out.h5")}
    assert (folder / "precious.h5").read_text() == "precious"


def test_what_is_wrong_has_a_name_of_its_own():
    assert len({bad.what for bad in REFUSED}) == len(REFUSED)


def test_the_documented_table_is_this_one():
    text = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| `(.+)` \| (\d) \|$", text, re.MULTILINE)
    assert [(what, int(code)) for what, _, code in rows] == [(bad.what, bad.code) for bad in REFUSED]
    for (_, message, _), bad in zip(rows, REFUSED, strict=True):
        assert re.search(bad.says, message.replace("\\|", "|")), message
