"""`mpirun -n P ringmpi run` with [backward]: gradients in the file, those of one process, counted and verified."""

import json

import h5py
import ml_dtypes
import numpy as np
import pytest

import ringmpi
from ringmpi import Mask
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.results import Results
from tests.launched.conftest import write_floats
from tests.launched.test_run import passed
from tests.tolerances import assert_gradients

LENGTH = 331
DOCUMENTS = [100, 31, 0, 200]
MASKS = {
    '"causal"': Mask.causal(),
    '{documents = {query = [100, 31, 0, 200], within = "causal"}}': Mask.documents(DOCUMENTS, within=Mask.causal()),
    "{window = [40, 0]}": Mask.window(40, 0),
}


@pytest.fixture
def backward_job(tmp_path):
    """Write an input with upstream gradients and its RUN.toml."""

    def write(mask='"causal"', *, dtype=np.float32, heads=(4, 2), batch=(), options="", ring="", attention=""):
        rng = np.random.default_rng(2)
        lead = {"q": heads[0], "k": heads[1], "v": heads[1], "do": heads[0]}
        dims = {"q": 8, "k": 8, "v": 5, "do": 5}
        with h5py.File(tmp_path / "in.h5", "w") as file:
            for name, count in lead.items():
                write_floats(file, name, rng.standard_normal((*batch, count, LENGTH, dims[name])).astype(dtype))
            wide = np.float64 if dtype is np.float64 else np.float32
            file["dlse"] = rng.standard_normal((*batch, heads[0], LENGTH)).astype(wide)
        path = tmp_path / "run.toml"
        path.write_text(
            f'[input]\nfile = "{tmp_path}/in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[attention]\nmask = {mask}\n'
            f'{attention}\n[ring]\n{ring}\n[backward]\ngrad_output = "do"\n{options}\n'
            f'[output]\nfile = "{tmp_path}/out.h5"\nverify_rows = 100000\n'
        )
        return path

    return write


def read(path):
    """All arrays of an input, and of an output: [batch, heads, length, dim]."""
    with Inputs(path / "in.h5") as inputs, Results(path / "out.h5") as results:
        q, k, v, grad_output = (inputs.array(name).rows(np.arange(LENGTH)) for name in ("q", "k", "v", "do"))
        upstream = inputs.array("dlse", has_dim=False).rows(np.arange(LENGTH))
        found = [array.rows(np.arange(LENGTH)) for array in results.gradients.values()]
        return (q, k, v, grad_output, upstream), found, results.account


def check(path, mask, upstream=False, **scores):
    """The gradients of the file are those of the reference, and of `attention_backward`."""
    (q, k, v, grad_output, extra), found, account = read(path)
    options = {"grad_log_sum_exp": extra} if upstream else {}
    scoring = ringmpi.core.scoring.Scoring(scale=q.shape[-1] ** -0.5, **scores)
    assert_gradients((*found, None, None), grad_output, q, k, v, mask.allowed(LENGTH, LENGTH), scoring, **options)
    out = ringmpi.attention(q, k, v, mask=mask, **scores)
    alone = ringmpi.attention_backward(grad_output, q, k, v, out, mask=mask, **options, **scores)
    ulp = np.finfo(np.float32).eps * 64 if q.dtype != np.float64 else 1e-13
    ulp = float(ml_dtypes.finfo(q.dtype).eps) if q.dtype.itemsize == 2 else ulp
    for mine, theirs in zip(found, alone, strict=True):
        size = max(np.abs(theirs.astype(np.float64)).max(), 1)
        assert np.abs(mine.astype(np.float64) - theirs.astype(np.float64)).max() <= ulp * size
    assert account.backward.pairs_attended == account.backward.pairs_asked == out.pairs


@pytest.mark.parametrize(("ranks", "travel"), [(1, "keys"), (2, "queries"), (3, "keys"), (3, "queries")])
def test_both_ways_round_on_every_rank_count(mpirun, backward_job, tmp_path, ranks, travel):
    options = f'travel = "{travel}"\ngrad_log_sum_exp = "dlse"'
    report = passed(mpirun(ranks, "run", backward_job(options=options), "--json"))
    assert report["backward"]["travel"] == travel
    assert report["backward"]["pairs_attended"] == LENGTH * (LENGTH + 1) // 2 * 4
    check(tmp_path, Mask.causal(), upstream=True)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_every_dtype_with_a_batch_axis(mpirun, backward_job, tmp_path, dtype):
    passed(mpirun(2, "run", backward_job(dtype=dtype, batch=(2,), heads=(2, 1)), "--json"))
    check(tmp_path, Mask.causal())


@pytest.mark.parametrize(
    ("sharding", "mask"), list(zip(("contiguous", "striped", "balanced"), [*MASKS][1:] * 2, strict=False))
)
def test_documents_and_windows_on_every_sharding_virtual(mpirun, backward_job, tmp_path, sharding, mask):
    job = backward_job(mask, ring=f'sharding = "{sharding}"\nschedule = "bidirectional"')
    report = passed(mpirun(3, "run", job, "--json", "--set", "output.layout=virtual"))
    assert report["backward"]["bytes_sent"] > 0
    assert len(list(tmp_path.glob("out.h5.part-*"))) == 3
    check(tmp_path, MASKS[mask])


def test_scores_that_have_options(mpirun, backward_job, tmp_path):
    job = backward_job(attention="softcap = 3.0\ndropout = 0.25\nseed = 9\nalibi = [0.5, 0.25, 0.125, 0.0]")
    passed(mpirun(2, "run", job, "--json"))
    (_, found, _), alibi = read(tmp_path), np.array([0.5, 0.25, 0.125, 0.0])
    assert all(np.abs(array).max() > 0 for array in found)
    (q, k, v, grad_output, _), found, _ = read(tmp_path)
    scoring = ringmpi.core.scoring.Scoring(8**-0.5, softcap=3.0, alibi_slopes=alibi, dropout=0.25, seed=9)
    allowed = Mask.causal().allowed(LENGTH, LENGTH)
    assert_gradients((*found, None, None), grad_output, q, k, v, allowed, scoring)


def test_nan_in_grad_output_reaches_only_what_sees_it(mpirun, backward_job, tmp_path):
    job = backward_job()
    with h5py.File(tmp_path / "in.h5", "r+") as file:
        file["do"][1, 200, 3] = np.nan
    done = mpirun(2, "run", job, "--json")
    passed(done)
    assert "grad_output holds 1 NaN" in done.err
    _, (query, key, value), _ = read(tmp_path)
    assert np.isfinite(query[:, :, :200]).all()
    assert np.isnan(query[0, 1, 200]).all()
    assert np.isfinite(value[0, :, 201:]).all()
    assert np.isnan(value[0, 0, :201, 3]).all()
    assert np.isnan(key[0, 0, 0]).all()


def test_rows_and_keys_without_a_pair_have_gradient_zero(mpirun, backward_job, tmp_path):
    passed(mpirun(3, "run", backward_job("{keys = [7, 9]}"), "--json"))
    _, (query, key, value), _ = read(tmp_path)
    assert query.any()
    assert not key[:, :, :7].any()
    assert not value[:, :, 9:].any()
    assert value[:, :, 7:9].all()


def test_what_a_person_sees(mpirun, backward_job, tmp_path):
    done = mpirun(2, "run", backward_job(), COLUMNS="200")
    assert done.code == 0
    for part in ("seconds backwards, keys travelling", "backwards 219,784 of 219,784 asked: exact", "/grad_value"):
        assert part in done.out
    assert "backward pass: keys travel" in done.err
    done = mpirun(1, "verify", tmp_path / "out.h5", "--rows", "9")
    assert done.code == 0, done.out
    assert "/grad_key: 9 of 331 rows recomputed" in done.out
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        file["grad_key"][1, 77, 3] += 1
    done = mpirun(1, "verify", tmp_path / "out.h5")
    assert done.code == 1
    assert "rows beyond tolerance: 1, at positions 77" in done.out


def test_a_run_takes_the_memory_that_it_says(mpirun, tmp_path):
    """Measured against a run of next to nothing, within 10 %: both ways round, in float32."""
    found = {}
    for length in (64, 60_000):
        rng = np.random.default_rng(0)
        with h5py.File(tmp_path / "in.h5", "w") as file:
            for name, heads in {"q": 4, "k": 4, "v": 4, "do": 4}.items():
                file[name] = rng.standard_normal((heads, length, 64), np.float32)
        (tmp_path / "run.toml").write_text(
            f'[input]\nfile = "{tmp_path}/in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[attention]\n'
            f'mask = {{window = [7, 0]}}\n[ring]\nsharding = "zigzag"\n[backward]\ngrad_output = "do"\n'
            f'[output]\nfile = "{tmp_path}/out.h5"\n'
        )
        for travel in ("keys", "queries"):
            done = mpirun(2, "run", tmp_path / "run.toml", "--json", "--force", "--set", f"backward.travel={travel}")
            assert done.code == 0, done.err
            report = json.loads(done.out)
            found[length, travel] = report["peak_memory_bytes"][1], report["array_bytes"]
    for travel in ("keys", "queries"):
        taken = found[60_000, travel][0] - found[64, travel][0]
        said = found[60_000, travel][1]
        assert 0.9 * said < taken < 1.1 * said, f"{travel}: {taken / 2**20:.0f} MiB taken, {said / 2**20:.0f} said"
