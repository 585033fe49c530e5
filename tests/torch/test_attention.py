"""ringmpi.torch in one process: torch's own attention and gradients, or what torch does where it refuses."""

import subprocess
import sys
from inspect import signature

import ml_dtypes
import numpy as np
import pytest

import ringmpi.api.attention
import ringmpi.api.backward
from ringmpi import Mask, Sharding
from ringmpi.core.reference import dense_attention
from ringmpi.core.scoring import Scoring
from ringmpi.errors import BackendError, ShapeError
from tests.dense import dense_attention_backward
from tests.tolerances import assert_attention, assert_gradients, assert_within, finite_scale, gradient_scales

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from ringmpi.torch import attention  # noqa: E402

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SCALE = 0.25
CAUSAL = Scoring(SCALE)


def tensors(*shapes, dtype=torch.float64):
    """Random leaves that want a gradient."""
    generator = torch.Generator().manual_seed(20231003)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def qkv(dtype=torch.float64, length=37, heads=(4, 2), value_dim=16, batch=2):
    return tensors(
        (batch, heads[0], length, 16), (batch, heads[1], length, 16), (batch, heads[1], length, value_dim), dtype=dtype
    )


def array(tensor):
    """A copy for NumPy, by way of float64, which holds every number of the narrower dtypes."""
    dtype = ml_dtypes.bfloat16 if tensor.dtype == torch.bfloat16 else str(tensor.dtype).removeprefix("torch.")
    return tensor.detach().to(torch.float64).numpy().astype(dtype)


def upstream(output, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_gradients_are_as_near_to_the_truth_as_those_of_torch(dtype, heads, ranks):
    inputs = qkv(dtype, heads=heads)
    ours = attention(*inputs, mask=Mask.causal(), ranks=ranks)
    theirs = scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    grad_output = upstream(theirs)
    found, near = ([array(x) for x in (o, *torch.autograd.grad(o, inputs, grad_output))] for o in (ours, theirs))
    q, k, v, weights = (array(x) for x in (*inputs, grad_output))
    allowed, wide = Mask.causal().allowed(37, 37), np.longdouble if dtype == torch.float64 else np.float64
    exact = [
        dense_attention(q, k, v, allowed, CAUSAL, dtype=np.dtype(wide))[0],
        *dense_attention_backward(weights, q, k, v, allowed, CAUSAL, dtype=wide)[:3],
    ]
    scales = [finite_scale(v), *gradient_scales(weights, q, k, v, allowed, CAUSAL)[:3]]
    for ours_, theirs_, exact_, scale in zip(found, near, exact, scales, strict=True):
        assert_within(ours_, theirs_, exact_, float(scale))


@pytest.mark.parametrize("travel", ["keys", "queries"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_options_and_all_gradients_are_those_of_the_formula(dtype, travel):
    mask, inputs = Mask.window(9, 4) | Mask.sinks(2), qkv(dtype, value_dim=8)
    sinks, slopes = tensors((4,), (4,))
    options = {"sink_logits": sinks, "alibi_slopes": slopes, "softcap": 3.0, "scale": SCALE}
    outputs = attention(*inputs, mask=mask, ranks=3, travel=travel, return_log_sum_exp=True, **options)
    grad_output, grad_log_sum_exp = map(upstream, outputs)
    found = torch.autograd.grad(outputs, [*inputs, sinks, slopes], [grad_output, grad_log_sum_exp])
    q, k, v = map(array, inputs)
    allowed, scoring = mask.allowed(37, 37), Scoring(SCALE, 3.0, array(slopes))
    assert_attention(tuple(map(array, outputs)), q, k, v, allowed, scoring, sink_logits=array(sinks))
    rows = {"sink_logits": array(sinks), "grad_log_sum_exp": array(grad_log_sum_exp)}
    assert_gradients(tuple(map(array, found)), array(grad_output), q, k, v, allowed, scoring, **rows)


def recorded(monkeypatch, module, name):
    """The options of the next call of a function, which still does its work."""
    given, call = {}, getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arrays, **options: given.update(options) or call(*arrays, **options))
    return given


def test_every_option_reaches_both_passes(monkeypatch):
    names = set(signature(ringmpi.attention).parameters) - {"record"} | {"travel", "return_log_sum_exp"}
    assert set(signature(attention).parameters) == names
    options = {"mask": Mask.causal(), "scale": 0.5, "softcap": 2.0, "dropout": 0.1, "seed": 3, "ranks": 3}
    options |= {"sharding": Sharding.striped(37, 3), "key_sharding": Sharding.zigzag(37, 3)}
    options |= {"schedule": "all-gather", "reproducible": False, "backend": "numpy"}
    numbers = {"sink_logits": [1.0, 2.0, 3.0, 4.0], "alibi_slopes": [0.4, 0.3, 0.2, 0.1]}
    forward = recorded(monkeypatch, ringmpi.api.attention, "attention")
    backward = recorded(monkeypatch, ringmpi.api.backward, "attention_backward")
    attention(*qkv(), travel="queries", **options, **numbers).sum().backward()
    assert backward.pop("grad_log_sum_exp") is None
    assert backward.pop("travel") == "queries"
    for given in (forward, backward):
        assert {name: given.pop(name).tolist() for name in numbers} == numbers
        assert given == options
    assert names - {"q", "k", "v", "travel", "return_log_sum_exp"} == {*options, *numbers}


@pytest.mark.parametrize(
    ("schedule", "travel", "dropout"),
    [
        ("ring", "keys", 0.0),
        ("ring", "queries", 0.4),
        ("bidirectional", "queries", 0.0),
        ("all-gather", "keys", 0.4),
        ("broadcast", "auto", 0.4),
    ],
)
def test_gradcheck(schedule, travel, dropout):
    inputs = tensors((2, 5, 3), (1, 5, 3), (1, 5, 2), (2,), (2,))
    options = {"schedule": schedule, "travel": travel, "dropout": dropout, "seed": 5, "softcap": 2.0}

    def both(q, k, v, sinks, slopes):
        return attention(
            q,
            k,
            v,
            sink_logits=sinks,
            alibi_slopes=slopes,
            mask=Mask.causal(),
            ranks=3,
            sharding=Sharding.from_ranges(5, [[range(0, 1), range(3, 5)], [], [range(1, 3)]]),
            return_log_sum_exp=True,
            **options,
        )

    assert torch.autograd.gradcheck(both, inputs)


def test_the_gradient_of_log_sum_exp_alone_is_that_of_torch():
    q, k, v = qkv(heads=(2, 2))
    _, log_sum_exp = attention(q, k, v, return_log_sum_exp=True, ranks=2)
    plain = torch.logsumexp(q @ k.mT * SCALE, -1)
    weights = upstream(plain)
    found, expected = (torch.autograd.grad(x, (q, k), weights, retain_graph=True) for x in (log_sum_exp, plain))
    torch.testing.assert_close(found, expected)
    (of_values,) = torch.autograd.grad(log_sum_exp, v, weights)
    assert not of_values.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_read_where_they_lie(dtype, monkeypatch):
    seen, forward = [], ringmpi.api.attention.attention
    monkeypatch.setattr(
        ringmpi.api.attention, "attention", lambda *arrays, **options: seen.extend(arrays) or forward(*arrays)
    )
    inputs = [x.transpose(1, 2) for x in qkv(dtype, heads=(37, 37), length=4)]  # strided
    attention(*inputs)
    assert [x.ctypes.data for x in seen] == [x.data_ptr() for x in inputs]


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_matter(dtype):
    inputs = [torch.stack([x, x.flip(0)], -1).detach()[..., 0].requires_grad_() for x in qkv(dtype)]
    weight = torch.full((), 0.5, dtype=dtype).expand(2, 4, 37, 16)  # all strides 0, as that of sum() is
    output = attention(*inputs, ranks=2, mask=Mask.causal(), scale=SCALE)
    found = torch.autograd.grad(output, inputs, weight)
    allowed = Mask.causal().allowed(37, 37)
    assert_gradients((*map(array, found), None, None), *map(array, (weight, *inputs)), allowed, CAUSAL)


def test_a_view_that_only_says_minus_is_read_with_its_sign():
    q, k, v = (x.detach() for x in qkv())
    minus = torch.complex(q, -q).conj().imag
    assert minus.is_neg()
    assert torch.equal(attention(minus, k, v), attention(q.clone(), k, v))


def test_without_grad_nothing_is_recorded():
    inputs = qkv()
    with torch.no_grad():
        plain = attention(*inputs)
    recorded = attention(*inputs)
    assert not plain.requires_grad
    assert recorded.requires_grad
    assert torch.equal(plain, recorded)
    assert not attention(*(x.detach() for x in inputs)).requires_grad


@pytest.mark.parametrize("index", [0, 1, 2])
def test_gradients_go_where_they_are_asked_for_alone(index):
    inputs = qkv()
    expected = torch.autograd.grad(attention(*inputs).square().sum(), inputs)[index]
    one = [x.detach() for x in inputs]
    one[index].requires_grad_()
    attention(*one).square().sum().backward()
    assert torch.equal(one[index].grad, expected)
    assert [x.grad is None for x in one] == [other != index for other in range(3)]


def test_a_graph_that_is_kept_gives_the_same_bits_again():
    inputs = qkv()
    output = attention(*inputs, ranks=2)
    first, second = (torch.autograd.grad(output, inputs, upstream(output), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_numbers_of_heads_may_be_a_list_or_a_parameter_of_another_dtype():
    inputs = qkv(torch.bfloat16)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
    output = attention(*inputs, sink_logits=sinks)
    assert torch.equal(output, attention(*inputs, sink_logits=sinks.tolist()))
    output.float().square().sum().backward()
    assert sinks.grad.dtype == torch.float32
    assert sinks.grad.all()


def test_second_derivatives_are_refused():
    q, k, v = qkv()
    (gradient,) = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_writing_to_an_input_before_the_backward_pass_is_refused():
    q, k, v = (x.detach() for x in qkv())
    output = attention(q, k.requires_grad_(), v)
    q.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x.detach().numpy(), ShapeError, r"k is a ndarray; .* torch\.from_numpy"),
        (lambda x: x.to("meta"), BackendError, r"k is on meta; .* k\.cpu\(\)"),
        (lambda x: x.to(torch.int32), ShapeError, r"torch\.int32; .* k\.to\(torch\.float32\)"),
        (lambda x: x.to(torch.complex64), ShapeError, r"torch\.complex64"),
        (lambda x: x.detach().to_sparse(), ShapeError, r"torch\.sparse_coo .* k\.to_dense\(\)"),
        (lambda x: x.to(torch.float32), ShapeError, "float64, float32, float64; all must be the same"),
    ],
)
def test_what_cannot_be_read_is_refused(change, error, message):
    q, k, v = qkv()
    with pytest.raises(error, match=message):
        attention(q, change(k), v)


def test_sinks_on_another_device_are_refused():
    with pytest.raises(BackendError, match="sink_logits is on meta"):
        attention(*qkv(), sink_logits=torch.zeros(4, device="meta"))


def test_the_package_itself_never_loads_torch():
    code = "import sys, ringmpi; [getattr(ringmpi, name) for name in ringmpi.__all__]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler looks at it, nobody else
def test_compiled_code_calls_it_as_it_is():
    q, k, v = qkv()

    def loss(q):
        return attention(q.sin(), k, v).square().sum()

    expected, found = (torch.autograd.grad(f(q), q)[0] for f in (loss, torch.compile(loss, backend="eager")))
    assert torch.equal(found, expected)
