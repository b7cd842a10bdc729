"""Vjps written in operations, for gradients that are themselves differentiated.

The vjp of a row computes with arrays and leaves no graph. The forms here compute the same with tensors; ``grad`` uses
them when it is asked for a graph of the gradient (``create_graph=True``).
"""

from hpcdist.autograd.second import arrangement, elementwise, index, product, reduce
from hpcdist.autograd.second.form import SECOND, SecondForm, second

__all__ = ["SECOND", "SecondForm", "arrangement", "elementwise", "index", "product", "reduce", "second"]
