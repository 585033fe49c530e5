"""The limits of compiled kernels: each of them, broken, is a fault."""

import json
from dataclasses import replace

import pytest

from ringmpi.backends.cuda.addition import EVERY_ADDITION, THREADS
from ringmpi.backends.cuda.compiler import Compiled
from ringmpi.backends.cuda.instances import SIZES, WIDTHS, Instance, Size, every_instance
from ringmpi.core.dtypes import SUPPORTED
from ringmpi.core.shapes import HeadShape
from tests.cuda.compile_table import (
    ARCHITECTURES,
    DOCS,
    EVERY_KERNEL,
    NEEDED,
    NEEDED_TO_ADD,
    NEWEST,
    NEWEST_LABELS,
    blocks_of,
    faults_of,
    registers_limit,
)
from tests.cuda.machine_code import counted

INSTANCE = every_instance()[0]
COUNTS = dict.fromkeys(NEEDED[2], 9)
SOUND = Compiled("name", registers=registers_limit(INSTANCE.size.blocks), spilled=0, stack=0)


def test_a_kernel_within_its_limits_has_no_fault():
    assert faults_of(INSTANCE, SOUND, COUNTS) == ()


@pytest.mark.parametrize(
    ("compiled", "counts", "fault"),
    [
        (replace(SOUND, spilled=4), COUNTS, "4 bytes spilled"),
        (replace(SOUND, stack=8), COUNTS, "8 bytes of local memory"),
        (replace(SOUND, registers=SOUND.registers + 1), COUNTS, "registers"),
        (SOUND, COUNTS | {"LDSM.16": 0}, "no LDSM.16"),
    ],
)
def test_beyond_a_limit_of_a_thread(compiled, counts, fault):
    (found,) = faults_of(INSTANCE, compiled, counts)
    assert fault in found


def test_beyond_the_shared_memory_of_a_multiprocessor():
    big = Instance("output", INSTANCE.dtype, 256, INSTANCE.rounded, Size(4, 64, 1))
    (found,) = faults_of(replace(big, size=Size(4, 64, 2)), replace(SOUND, registers=200), COUNTS)
    assert "in 2 blocks" in found
    found = faults_of(replace(big, size=Size(4, 256, 1)), replace(SOUND, registers=200), COUNTS)
    assert "in a block" in found[0]


@pytest.mark.parametrize("kernel", EVERY_ADDITION, ids=lambda kernel: kernel.label)
def test_beyond_a_limit_of_an_addition(kernel):
    counts = dict.fromkeys(NEEDED_TO_ADD[kernel.dtype.itemsize], 1)
    sound = Compiled("name", registers=32, spilled=0, stack=0)
    assert faults_of(kernel, sound, counts) == ()
    assert faults_of(kernel, replace(sound, registers=33), counts) == ("33 registers, 32 permitted for 16 blocks",)
    assert faults_of(kernel, sound, counts | {"STG.E": 0}) == ("no STG.E",)


def test_registers_of_a_thread():
    assert [registers_limit(blocks) for blocks in (1, 2, 3, 4)] == [255, 255, 168, 128]


def test_instructions_are_counted_without_predicates_and_labels():
    text = """
        /*0010*/              @!P0 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/              @UP1 LDGSTS.E.BYPASS.128 [R5], [R2.64] ;
        .L_1:
    """
    assert counted(text) == {"HMMA.16816": 2, "LDGSTS.E": 1}


def test_the_documented_table_is_that_of_these_kernels():
    """`python -m tests.cuda.compile_table --docs` writes it anew."""
    lines = json.loads(DOCS.read_text(encoding="utf-8"))["kernels"]
    documented = {(line["label"], line["architecture"]): line for line in lines}
    for kernel in EVERY_KERNEL:
        for architecture in ARCHITECTURES:
            line = documented.pop((kernel.label, architecture))
            rows, tile = (kernel.block_rows, kernel.tile) if isinstance(kernel, Instance) else (THREADS, 0)
            found = [line[name] for name in ("shared", "rows", "tile", "blocks", "spills")]
            assert found == [kernel.shared_bytes, rows, tile, blocks_of(kernel), 0]
            assert line["registers"] <= registers_limit(blocks_of(kernel))
    assert sorted(documented) == sorted((label, NEWEST) for label in NEWEST_LABELS)


def test_every_instance_is_one_of_a_kind():
    instances = every_instance()
    for what in ("name", "label"):
        assert len({getattr(instance, what) for instance in instances}) == len(instances)
    assert set(NEWEST_LABELS) < {instance.label for instance in instances}
    assert sum(map(len, SIZES.values())) * 2 == len(instances) + 2 * len(WIDTHS) * 2, "no size that nothing uses"


def test_whatever_the_host_may_choose_is_among_them():
    from ringmpi.backends.cuda.instances import backward_instance, forward_instance

    instances = set(every_instance())
    for dtype in SUPPORTED:
        for head_dim in (1, 32, 33, 100, 192, 256):
            heads = HeadShape(1, 2, 1, head_dim, 256 - head_dim)
            for extras in (False, True):
                for rounded in (False, True):
                    for choose in (forward_instance, backward_instance):
                        found = choose(dtype, heads, extras=extras, rounded=rounded)
                        assert found in instances
                        assert found.width >= max(head_dim, 256 - head_dim)
