"""Grain's `assert_equal_output_after_checkpoint`, unmodified, from Grain's package."""

from grain._src.python.testing.experimental import assert_equal_output_after_checkpoint

import gristmill.grain as gm_grain

from .ground import case


def check(ground, **options):
    pipeline = ground.pipeline(100, 16, **options)
    assert_equal_output_after_checkpoint(gm_grain.dataset(pipeline, service=ground.service, epochs=2))


def check_mapped(ground):
    dataset = gm_grain.dataset(ground.pipeline(100, 16), service=ground.service, epochs=2)
    assert_equal_output_after_checkpoint(dataset.map(lambda batch: batch["value"] * 2))


case("grain", "checkpoint", "sized", check)
case("grain", "checkpoint", "not_sized", lambda ground: check(ground, is_sized=False))
case("grain", "checkpoint", "shuffled", lambda ground: check(ground, shuffled=True))
case("grain", "checkpoint", "mapped", check_mapped)
