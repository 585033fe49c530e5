"""ONNX Runtime on the CPU: the fastest of its attention operators that has the question.

MultiHeadAttention where every query head has its keys and nothing is masked, GroupQueryAttention where the mask is
causal, else the operator Attention of ONNX opset 23.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ringmpi.bench.peers import Array, Prepared, UnsupportedError, refuse
from ringmpi.bench.questions import Question

MICROSOFT = "com.microsoft"
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """A graph of one node, in a session of its own."""
    refuse(backward_pass=backward, ALiBi=question.alibi_slopes, sinks=question.sink_logits)
    if question.dtype not in TYPES:
        raise UnsupportedError(f"no {question.dtype} on the CPU")
    if question.mask == "causal" and question.softcap is None and question.lengths[0] == question.lengths[1]:
        node, feeds = _packed("GroupQueryAttention", question)
    elif question.mask == "full" and question.group == 1 and question.softcap is None:
        node, feeds = _packed("MultiHeadAttention", question)
    else:
        node, feeds = _attention(question)
    session = _session(node, feeds, threads)
    heads = len(question.q)

    def read(results: list[Array]) -> list[Array]:
        out = results[0]
        out = out if out.ndim == 4 else out.reshape(1, out.shape[1], heads, -1).swapaxes(1, 2)
        return [out[0].astype(np.float32)]

    about = {"onnxruntime": onnxruntime.__version__, "operator": node.op_type}
    return Prepared(lambda: session.run(["out"], feeds), read, about)


def _packed(operator: str, question: Question) -> tuple[Any, dict[str, Array]]:
    """The two operators that take [batch, length, heads x head_dim]."""
    feeds = {
        name: np.ascontiguousarray(array.swapaxes(0, 1)).reshape(1, array.shape[1], -1).astype(question.dtype)
        for name, array in zip("qkv", (question.q, question.k, question.v), strict=True)
    }
    heads, length = len(question.q), question.lengths[0]
    if operator == "MultiHeadAttention":
        return helper.make_node(operator, ["q", "k", "v"], ["out"], domain=MICROSOFT, num_heads=heads), feeds
    feeds |= {"last": np.array([length - 1], np.int32), "total": np.array(length, np.int32)}
    node = helper.make_node(
        operator,
        ["q", "k", "v", "", "", "last", "total"],
        ["out", "present_k", "present_v"],
        domain=MICROSOFT,
        num_heads=heads,
        kv_num_heads=len(question.k),
    )
    return node, feeds


def _attention(question: Question) -> tuple[Any, dict[str, Array]]:
    """The operator of the standard; [batch, heads, length, head_dim]."""
    arrays = zip("qkv", (question.q, question.k, question.v), strict=True)
    feeds = {name: array[None].astype(question.dtype) for name, array in arrays}
    names, options = ["q", "k", "v"], {"is_causal": int(question.mask == "causal")}
    if question.mask not in ("full", "causal"):
        feeds["mask"] = question.allowed()
        names.append("mask")
    cap = {} if question.softcap is None else {"softcap": float(question.softcap)}
    return helper.make_node("Attention", names, ["out"], **options, **cap), feeds


def _session(node: Any, feeds: dict[str, Array], threads: int) -> Any:
    types = {"bool": TensorProto.BOOL, "int32": TensorProto.INT32} | TYPES
    kind = types[feeds["q"].dtype.name]
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, types[feed.dtype.name], feed.shape) for name, feed in feeds.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in node.output],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has classes of its own for each reason
        raise UnsupportedError(str(error).splitlines()[0]) from None
