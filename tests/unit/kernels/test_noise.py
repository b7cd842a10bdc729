"""Philox against the known answers of its authors (Random123, kat_vectors: philox4x32, 10 rounds)."""

import numpy as np
import pytest

from hpcdist.backends import flags
from hpcdist.kernels.noise import philox, philox_at

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES), (ONES, ONES, ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("off", [(), ("philox", "philox_at")], ids=["compiled", "generic"])
@pytest.mark.parametrize(("key", "counter", "block"), KNOWN)
def test_known_answers(key, counter, block, off):
    start, rest = counter[0] + (counter[1] << 32), counter[2:]
    words = np.zeros((3, 4), np.uint32)
    with flags.kernels(off=off):
        philox(words, *key, *rest, (start - 1) % 2**64)
        np.testing.assert_array_equal(words[1], np.array(block, np.uint32))
        at = np.zeros((2, 4), np.uint32)
        philox_at(at, *key, *rest, np.array([(start + 1) % 2**64, start], np.uint64))
    np.testing.assert_array_equal(at, words[[2, 1]])
