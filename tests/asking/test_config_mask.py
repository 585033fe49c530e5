"""The mask that a configuration names is the mask that the mathematics gets."""

import numpy as np
import pytest

from ringmpi.asking.config_mask import build_mask
from ringmpi.config import parse_config
from ringmpi.core.masking import Mask
from ringmpi.errors import MaskError

DATASETS = {
    "ql": np.array([3, 0, 5]),
    "kl": np.array([2, 1, 6]),
    "table": np.array([[0, 4, 0, 9, -2, 0], [4, 8, 2, 5, -9, 9]]),
    "fractions": np.array([2.5, 5.5]),
}


def built(mask: str) -> Mask:
    text = f"""
        input = {{file = "in.h5", query = "q", key = "k", value = "v"}}
        output = {{file = "out.h5"}}
        attention = {{mask = {mask}}}
    """
    return build_mask(parse_config(text).attention.mask, DATASETS.__getitem__)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ('"full"', Mask.full()),
        ('"causal"', Mask.causal()),
        ("{causal = -2}", Mask.causal(-2)),
        ('{causal = "end"}', Mask.causal("end")),
        ("{window = [3, 1]}", Mask.window(3, 1)),
        ('{window = ["all", 1], offset = 2}', Mask.window(None, 1, 2)),
        ('{window = [1, "all"], offset = "end"}', Mask.window(1, None, "end")),
        ('{documents = {query = "ql", key = "kl"}}', Mask.documents(DATASETS["ql"], DATASETS["kl"])),
        ("{documents = {query = [3, 5], key = [4, 5]}}", Mask.documents([3, 5], [4, 5])),
        (
            '{documents = {query = "ql", key = [2, 1, 6], within = {causal = "end"}}}',
            Mask.documents(DATASETS["ql"], [2, 1, 6], within=Mask.causal("end")),
        ),
        ("{keys = [2, 7]}", Mask.keys(2, 7)),
        ("{prefix = 3}", Mask.prefix(3)),
        ("{sinks = 2}", Mask.sinks(2)),
        ('{slices = "table"}', Mask.slices(DATASETS["table"])),
        ('{all = ["causal", {keys = [1, 5]}, {window = [4, 0]}]}', Mask.causal() & Mask.keys(1, 5) & Mask.window(4, 0)),
        ("{any = [{window = [2, 0]}, {sinks = 2}]}", Mask.window(2, 0) | Mask.sinks(2)),
    ],
)
def test_mask_of_the_text_is_the_mask(text, mask):
    np.testing.assert_array_equal(built(text).allowed(8, 9), mask.allowed(8, 9))
    assert built(text).fingerprint() == mask.fingerprint()


def test_keys_of_documents_are_their_queries_unless_named():
    np.testing.assert_array_equal(
        built('{documents = {query = "ql"}}').allowed(8, 8), Mask.documents([3, 0, 5]).allowed(8, 8)
    )


def test_lengths_that_are_no_whole_numbers_are_refused():
    with pytest.raises(MaskError, match="whole numbers"):
        built('{documents = {query = "fractions"}}')
