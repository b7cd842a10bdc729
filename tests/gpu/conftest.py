"""Tests on a real card. Without one, or without CuPy, they are skipped with the reason."""

import pytest

from hpcdist.backends import cuda


def pytest_collection_modifyitems(items):
    mine = [item for item in items if item.get_closest_marker("gpu")]
    reason = _reason() if mine else None
    for item in mine if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def _reason():
    try:
        import cupy  # noqa: F401
    except Exception as e:
        return f"no CuPy: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    return None if cuda.is_available() else "no CUDA device, or no driver for it"
