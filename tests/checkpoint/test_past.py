"""Which runs may go on from a checkpoint: those that compute the same, however they spread it."""

import h5py
import numpy as np
import pytest

from ringmpi.asking.question import question_of
from ringmpi.backends import get_backend
from ringmpi.checkpoint import past
from ringmpi.checkpoint.lifecycle import Again
from ringmpi.checkpoint.past import kernels_of, past_of, present
from ringmpi.config import parse_config
from ringmpi.errors import ConfigError, StorageError
from ringmpi.storage.generations import Generation
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.manifest import Manifest, RankFile
from tests.backends.natives import needs_native

TOML = (
    '[input]\nfile = "{}"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "out.h5"\n'
    '[checkpoint]\ndirectory = "checkpoints"\n[backward]\ngrad_output = "do"\n'
)


@pytest.fixture
def now(tmp_path):
    """What a run with some options is, on so many ranks."""
    for dtype, lead in (("float32", ()), ("float16", ()), ("float32", (1,))):
        with h5py.File(tmp_path / f"{dtype}{len(lead)}.h5", "w") as file:
            for name in ("q", "k", "v", "do", "w"):
                file[name] = np.ones((*lead, 2, 20, 4), dtype)
            file["dlse"] = np.ones((*lead, 2, 20), np.float32)

    def of(*overrides, ranks=2, file="float320.h5", rank=0, arithmetic=None):
        config = parse_config(TOML.format(tmp_path / file), overrides=overrides)
        with Inputs(config.input.file) as inputs:
            question = question_of(config, inputs, ranks=ranks)
            reproducible = question.problem.reproducible
            backend = get_backend(config.backend.name, reproducible=reproducible)
            kernels = [kernels_of(backend, question.problem) for _ in range(ranks)]
            if arithmetic:
                kernels[-1][1] = arithmetic
            return present(config, question, kernels, rank)

    return of


@pytest.fixture
def generation(tmp_path):
    """What a run has saved."""

    def of(run):
        files = tuple(
            RankFile(name=f"rank-{r:05d}.h5", bytes=0, digest="0" * 64, pairs=0, absorbed=()) for r in range(2)
        )
        manifest = Manifest(
            generation=1,
            created="",
            ringmpi="",
            identity=run.identity,
            layout=run.layout,
            progress={"stage": "forward", "step": -1, "pairs": {"forward": 0}, "input": {}},
            attempts=(),
            files=files,
        )
        return Generation(1, tmp_path / "generation-000001", manifest, "")

    return of


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("mask", ["attention.mask=causal"]),
        ("scale", ["attention.scale=0.25"]),
        ("softcap", ["attention.softcap=5.0"]),
        ("alibi", ["attention.alibi=[1.0, 0.5]"]),
        ("sink_logits", ["attention.sink_logits=[1.0, -inf]"]),
        ("dropout", ["attention.dropout=0.5"]),
        ("query", ["input.query=w"]),
        ("key", ["input.key=w"]),
        ("value", ["input.value=w"]),
        ("grad_output", ["backward.grad_output=w"]),
        ("grad_log_sum_exp", ["backward.grad_log_sum_exp=dlse"]),
        pytest.param("reproducible", ["ring.reproducible=true"], marks=needs_native),
    ],
)
def test_a_run_that_computes_something_else_is_refused_by_name(now, generation, field, overrides):
    with pytest.raises(StorageError, match=rf"to another run: (.*; )?{field}: the checkpoint has .*, this run has"):
        past_of(generation(now()), now(*overrides))
    assert past_of(generation(now(*overrides)), now(*overrides)).same_layout


@pytest.mark.parametrize(
    ("field", "first", "then"),
    [
        ("seed", ["attention.dropout=0.5"], ["attention.dropout=0.5", "attention.seed=9"]),
        pytest.param(
            "block", ["ring.reproducible=true"], ["ring.reproducible=true", "ring.block=10"], marks=needs_native
        ),
    ],
)
def test_so_is_one_with_another_detail_where_it_matters(now, generation, field, first, then):
    with pytest.raises(StorageError, match=rf"to another run: {field}: "):
        past_of(generation(now(*first)), now(*then))
    assert past_of(generation(now()), now(then[-1])).stage == "forward", "it does not matter without"


@pytest.mark.parametrize(("field", "file"), [("dtype", "float160.h5"), ("query", "float321.h5")])
def test_so_is_another_input(now, generation, field, file):
    with pytest.raises(StorageError, match=rf"to another run: (.*; )?{field}: "):
        past_of(generation(now()), now(file=file))


@needs_native
@pytest.mark.parametrize(
    "options",
    [
        {"ranks": 3},
        {"overrides": ["ring.sharding=contiguous"]},
        {"overrides": ["ring.schedule=bidirectional"]},
        {"overrides": ["ring.block=4"]},
        {"overrides": ["backend.name=numpy"]},
        {"overrides": ["backend.name=native", "backward.travel=keys"]},
    ],
    ids=str,
)
def test_another_layout_goes_on_with_the_rest_of_the_mask(now, generation, options):
    here = now("backend.name=native")
    assert past_of(generation(here), here).same_layout
    other = now(*options.get("overrides", ["backend.name=native"]), ranks=options.get("ranks", 2))
    assert not past_of(generation(here), other).same_layout


@needs_native
def test_a_pass_that_is_over_is_not_begun_again(now, generation):
    """The forward pass, which reads the input, has nothing left to do; the first backward pass is skipped."""
    reproducible = ["ring.reproducible=true"]
    made = generation(now(*reproducible))
    progress = made.manifest.progress | {"stage": "backward-queries"}
    made = made._replace(manifest=made.manifest.model_copy(update={"progress": progress, "layout": {}}))
    found = past_of(made, now(*reproducible))
    assert found.start("forward").absorbed is found.problem.whole_mask
    assert found.start("backward-keys") is None
    assert found.start("backward-queries").absorbed is not None


@pytest.mark.parametrize(
    ("stage", "made_with", "then"),
    [
        ("backward", "ring", "broadcast"),
        ("backward-keys", "broadcast", "ring"),
        ("backward-queries", "broadcast", "ring"),
    ],
)
def test_a_backward_pass_of_another_kind_cannot_take_over(now, generation, stage, made_with, then):
    """One pass meets each pair for three gradients, two meet it for some of them each. The forward pass may change."""
    made = generation(now(f"ring.schedule={made_with}"))
    assert not past_of(made, now(f"ring.schedule={then}")).same_layout
    progress = made.manifest.progress | {"stage": stage}
    made = made._replace(manifest=made.manifest.model_copy(update={"progress": progress}))
    with pytest.raises(StorageError, match=f"in the {stage} pass of schedule .*--set ring.schedule={made_with}, or"):
        past_of(made, now(f"ring.schedule={then}"))


@needs_native
def test_other_kernels_are_another_layout(now, generation, monkeypatch):
    """Of one rank alone, too; and so is another version of this package, which may cut work into other calls."""
    here = now("backend.name=native")
    made = generation(here)
    assert not past_of(made, now("backend.name=native", arithmetic="portable of another machine")).same_layout
    monkeypatch.setattr(past, "__version__", "99")
    assert not past_of(made, now("backend.name=native")).same_layout


def test_resume_needs_a_place_to_look_at():
    toml = TOML.format("in.h5").replace('[checkpoint]\ndirectory = "checkpoints"\n', "")
    with pytest.raises(ConfigError, match=r"--resume: this configuration has no table \[checkpoint\]"):
        Again(resume=True).check(parse_config(toml))
    Again(force=True).check(parse_config(toml))
    Again(resume=True).check(parse_config(TOML.format("in.h5")))
