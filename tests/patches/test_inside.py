"""Behaviour of the other patches, checked inside real trees: red on stock, green on the series."""

from pathlib import Path

import pytest
from patch_trees import series_of

SCRIPT = Path(__file__).with_name("inside.py")
COMMON = (
    *("compile_key", "fla_gate", "inc_takes_over", "inc_leaves_others_alone", "inc_without_fp8", "inc_refuses"),
    *("inc_block_sizes", "inc_renames", "int8_off_by_default", "int8_quantizes", "int8_keeps_bf16"),
    *("int8_accepts_inc", "int8_refuses", "int8_hook"),
)
CHECKS = {"vllm-0.23.0": (*COMMON, "short_steps"), "vllm-0.33.0": (*COMMON, "padded_page")}


@pytest.mark.parametrize("series", CHECKS)
def test_green_on_the_series(inside, tree, series):
    every = tree(series, [patch.name for patch in series_of(series).patches])
    assert inside(SCRIPT, str(every.path), *CHECKS[series]) == dict.fromkeys(CHECKS[series], "")


@pytest.mark.parametrize("series", CHECKS)
def test_red_on_stock(inside, tree, series):
    results = inside(SCRIPT, str(tree(series, ()).path), *CHECKS[series])
    assert {name for name, error in results.items() if not error} == set()


@pytest.mark.parametrize("series", CHECKS)
def test_int8_kernel_interpreted(inside, tree, series):
    result = inside(SCRIPT, str(tree(series).path), "int8_kernel", TRITON_INTERPRET="1")
    assert result == {"int8_kernel": ""}


def test_int8_kernel_compiles_for_the_cards_in_use(inside, tree):
    assert inside(SCRIPT, str(tree("vllm-0.23.0").path), "int8_compiles") == {"int8_compiles": ""}
