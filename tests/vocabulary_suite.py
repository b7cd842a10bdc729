"""A vocabulary that is cut over ranks: bodies of tests that compare with the whole on one rank."""

import numpy as np
import pytest
from reductions_suite import INV, S0, S1, S2, P, R, check, check_messages, mesh_of, numbers, op, placed

from hpcdist.autograd import Tensor
from hpcdist.dtensor import DTensor, Layout, Shard
from hpcdist.dtensor.debug import CommDebugMode

GATHER, SUM = {"all_gather": 1}, {"all_reduce": 1}
SIZES = (8, 5, 1)
"""Even, uneven (5 on 4 ranks: the last one has none), and one that most ranks have nothing of."""
SECTIONS = Shard(0, sections=(2, 6))


def tokens(shape, num, seed=3):
    return np.random.default_rng(seed).integers(0, num, shape)


def targets(shape, num, ignored=True):
    t = tokens(shape, num)
    if ignored:
        t.reshape(-1)[::3] = -100
    return t


# ---- the table
def check_embedding(comm):
    """Table rows cut: Partial without a message; width or tokens cut: as the signature says."""
    mesh, fn = mesh_of(comm), op("embedding")
    for num in SIZES:
        t, table = tokens((2, 5), num), numbers((num, 3))
        check(mesh, fn, [t, table], [[INV], [S0]], forward={}, backward={}, layout=[P])
        check(mesh, fn, [t, table], [[R], [S0]], forward={}, backward={}, layout=[P])
        check(mesh, fn, [t, table], [[INV], [S1]], forward={}, backward={}, layout=[S2])
        check(mesh, fn, [t, table], [[S1], [INV]], forward={}, layout=[S1])
        check(mesh, fn, [t, table], [[S0], [R]], forward={}, layout=[S0])
    check(mesh, fn, [tokens((7,), 8), numbers((8, 3))], [[INV], [SECTIONS]], layout=[P])
    check(mesh, fn, [np.zeros((0, 2), int), numbers((8, 3))], [[INV], [S0]], layout=[P])
    check(mesh, fn, [tokens((7,), 8), numbers((8, 3), np.float32)], [[INV], [S0]], layout=[P])


def check_embedding_refusals(comm):
    """Tokens out of range raise what they raise on one rank, on every rank; tokens and rows cut by one axis raise."""
    mesh, fn = mesh_of(comm), op("embedding")
    table = placed(mesh, numbers((5, 3)), [S0])
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match=r"expected 0 \.\. 4"):
            fn(placed(mesh, np.array([0, wrong, 2]), [INV]), table)
    with pytest.raises(TypeError, match="integer tokens"):
        fn(placed(mesh, numbers((3,)), [INV]), table)
    if comm.size > 1:
        with pytest.raises(ValueError, match=r"^embedding: what ranks hold [^$]*\[Replicate\(\)\]\) of input 0 before"):
            fn(placed(mesh, tokens((4,), 5), [S0]), table)


def check_embedding_two_axes(comm):
    """Tokens cut by one axis, rows or width by the other, or rows by both."""
    mesh, fn = mesh_of(comm, 2, comm.size // 2), op("embedding")
    for num in SIZES:
        t, table = tokens((3, 5), num), numbers((num, 3))
        check(mesh, fn, [t, table], [[S0, INV], [INV, S0]], forward={}, layout=[S0, P])
        check(mesh, fn, [t, table], [[INV, S1], [S0, INV]], forward={}, layout=[P, S1])
        check(mesh, fn, [t, table], [[S0, INV], [R, S1]], forward={}, layout=[S0, S2])
        check(mesh, fn, [t, table], [[INV, INV], [S0, S1]], forward={}, layout=[P, S2])
        check(mesh, fn, [t, table], [[INV, INV], [S0, S0]], forward={}, layout=[P, P])


# ---- cross-entropy
def losses(num):
    """Return (function, further inputs, whether a loss a row) by name."""
    weight = np.abs(numbers((num,), seed=8)) + 0.5
    found = {f"plain {r}": (op("cross_entropy", ignore_index=-100, reduction=r), [], False) for r in ("mean", "sum")}
    for r in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            attrs = {"ignore_index": -100, "reduction": r, "label_smoothing": smoothing}
            found[f"{r} {smoothing}"] = (op("class_cross_entropy", **attrs), [], r == "none")
            found[f"{r} {smoothing} weighted"] = (op("class_cross_entropy", **attrs), [weight], r == "none")
    return found


def with_targets(fn, t, mesh=None, placements=None):
    """Return a function of logits (and weights) only, so that all its inputs have gradients."""

    def call(logits, *more):
        if isinstance(logits, DTensor):
            return fn(logits, placed(mesh, t, placements), *more)
        return fn(logits, Tensor(t), *more)

    return call


def check_loss(comm, lead):
    """Classes cut: one all_gather, whatever the reduction; the gradient is local."""
    mesh = mesh_of(comm)
    last = Shard(len(lead))
    for num in SIZES:
        logits = numbers((*lead, num)) * 3
        for fn, more, _ in losses(num).values():
            args = [logits, targets(lead, num), *more]
            places = [[last], [INV], *([[INV]] * len(more))]
            check_of_logits(mesh, fn, args, places, forward=GATHER, backward={}, layout=[INV])


def check_of_logits(mesh, fn, arrays, places, **expected):
    """Compare; the weights of classes have no gradient."""
    logits, t, *weight = arrays
    held = [Tensor(w) for w in weight]

    def call(x):
        if isinstance(x, DTensor):
            return fn(x, placed(mesh, t, places[1]), *[placed(mesh, w, places[2], grad=False) for w in weight])
        return fn(x, Tensor(t), *held)

    check(mesh, call, [logits], [places[0]], **expected)


def check_loss_rows(comm):
    """Rows cut: Partial; the mean counts all targets by one all_reduce of two numbers, not in backward."""
    mesh = mesh_of(comm)
    for lead, cut in (((5,), S0), ((1,), S0), ((2, 5), S1)):
        for name, (fn, more, each) in losses(4).items():
            args = [numbers((*lead, 4)) * 3, targets(lead, 4), *more]
            forward = SUM if "mean" in name else {}
            layout = [cut if each else P]
            for places in ([[cut], [cut]], [[cut], [INV]], [[INV], [cut]]):
                whole = [[INV]] * len(more)
                check_of_logits(mesh, fn, args, places + whole, forward=forward, layout=layout)


def check_loss_two_axes(comm):
    """Rows cut by one axis, classes by the other; classes by both."""
    mesh = mesh_of(comm, 2, comm.size // 2)
    for num in SIZES:
        for name, (fn, more, each) in losses(num).items():
            args = [numbers((5, num)) * 3, targets((5,), num), *more]
            whole = [[INV, INV]] * len(more)
            forward = {**GATHER, **SUM} if "mean" in name else GATHER
            layout = [S0 if each else P, INV]
            check_of_logits(mesh, fn, args, [[S0, S1], [S0, INV], *whole], forward=forward, layout=layout)
            check_of_logits(mesh, fn, args, [[S1, S1], [INV, INV], *whole], forward={"all_gather": 2})
            check_of_logits(mesh, fn, args, [[S1, S0], [INV, S0], *whole], forward=forward)


def check_loss_precision(comm):
    """float32 as one rank has it to 1e-6, also where logits are large; half precision computed in float32."""
    mesh = mesh_of(comm)
    t = targets((6,), 8)
    for fn, more, _ in losses(8).values():
        for scale in (3.0, 30.0):
            x = (numbers((6, 8), seed=5) * scale).astype(np.float32)
            check_of_logits(mesh, fn, [x, t, *[w.astype(x.dtype) for w in more]], [[S1], [INV], [INV]], forward=GATHER)
        half = numbers((6, 8), np.float16)
        check_of_logits(mesh, fn, [half, t, *[w.astype(half.dtype) for w in more]], [[S1], [INV], [INV]], scale=2)


def check_all_ignored(comm):
    """No target counts: the loss is 0, and so are its gradients."""
    mesh, t = mesh_of(comm), np.full((4,), -100)
    for fn, more, _ in losses(5).values():
        for places in ([[S1], [INV], [INV]], [[S0], [S0], [INV]]):
            check_of_logits(mesh, fn, [numbers((4, 5)), t, *more], places)
    none = [np.zeros((0, 5)), np.zeros((0,), int)]
    for fn, more, _ in losses(5).values():
        check_of_logits(mesh, fn, [*none, *more], [[S1], [INV], [INV]])


def check_loss_refusals(comm):
    """What is wrong is the same error on every rank, also where one rank sees it; a clash names the operation."""
    mesh, fn = mesh_of(comm), op("cross_entropy", ignore_index=-100, reduction="mean")
    logits, bad = numbers((5, 4)), np.array([0, 1, 2, 3, 4])
    for places in ([[S1], [INV]], [[S0], [S0]]):
        with pytest.raises(IndexError, match="cross_entropy: target 4 is not a class: expected 0 to 3"):
            fn(placed(mesh, logits, places[0]), placed(mesh, bad, places[1]))
    with pytest.raises(ValueError, match="expected the same"):
        fn(placed(mesh, logits, [S1]), placed(mesh, bad[:4], [INV]))
    with pytest.raises(ValueError, match="reduction 'none'"):
        op("cross_entropy", ignore_index=-100, reduction="none")(
            placed(mesh, logits, [S1]), placed(mesh, bad % 4, [INV])
        )
    if comm.size > 1:
        with pytest.raises(ValueError, match=r"^cross_entropy: what ranks hold [^$]*\(\)\]\) of input 1 before"):
            fn(placed(mesh, logits, [S1]), placed(mesh, bad % 4, [S0]))


# ---- cross-entropy of a linear layer
def linear(reduction, chunk_rows):
    return op("linear_cross_entropy", ignore_index=-100, reduction=reduction, chunk_rows=chunk_rows)


def check_linear(mesh, shape, num, reduction, places, chunk_rows=2, dtype=np.float64, **expected):
    """Compare loss and gradients of a layer of ``num`` classes; places: of x, w and targets."""
    fn, t = linear(reduction, chunk_rows), targets(shape[:-1], num)

    def call(x, w):
        return fn(x, w, placed(mesh, t, places[2]) if isinstance(x, DTensor) else Tensor(t))

    check(mesh, call, [numbers(shape, dtype), numbers((num, shape[-1]), dtype, seed=2)], places[:2], **expected)


def check_linear_classes(comm):
    """Rows of the weight cut: one all_gather a chunk; backward adds up the gradient of x, once."""
    mesh = mesh_of(comm)
    for num in SIZES:
        for reduction in ("mean", "sum"):
            places = [[INV], [S0], [INV]]
            check_linear(mesh, (5, 3), num, reduction, places, forward={"all_gather": 3}, backward=SUM, layout=[INV])
            check_linear(mesh, (2, 2, 3), num, reduction, places, 9, forward=GATHER, backward=SUM, layout=[INV])
            check_linear(mesh, (2, 2, 3), num, reduction, [[R], [S0], [R]], 9, forward=GATHER, backward={})
            check_linear(mesh, (0, 3), num, reduction, places, forward={})
    check_linear(mesh, (5, 3), 8, "mean", [[INV], [SECTIONS], [INV]])
    check_linear(mesh, (5, 3), 8, "mean", [[INV], [S0], [INV]], dtype=np.float32)


def check_linear_rows(comm):
    """Rows cut: the gradient of the weight is added up once."""
    mesh = mesh_of(comm)
    for shape, cut in (((5, 3), S0), ((1, 3), S0), ((2, 5, 3), S1)):
        for places in ([[cut], [INV], [cut]], [[cut], [INV], [INV]], [[INV], [INV], [cut]], [[cut], [R], [cut]]):
            check_linear(mesh, shape, 4, "mean", places, forward=SUM, layout=[P])
            check_linear(mesh, shape, 4, "sum", places, forward={}, layout=[P])


def check_linear_two_axes(comm):
    """Both at once."""
    mesh = mesh_of(comm, 2, comm.size // 2)
    for num in SIZES:
        for reduction in ("mean", "sum"):
            places = [[S0, INV], [INV, S0], [S0, INV]]
            forward = {"all_gather": 2, **(SUM if reduction == "mean" else {})}
            check_linear(mesh, (7, 3), num, reduction, places, forward=forward, layout=[P, INV])
            check_linear(mesh, (5, 3), num, reduction, [[INV, INV], [S0, S0], [INV, INV]], 9, forward={"all_gather": 2})


def check_linear_refusals(comm):
    """Features cut, or rows and classes by one axis, would need a gather."""
    mesh, t = mesh_of(comm), targets((4,), 5)
    x, w = numbers((4, 3)), numbers((5, 3))
    if comm.size > 1:
        for places, moved in (
            ([[S1], [INV], [INV]], "0"),
            ([[INV], [S0], [S0]], "2"),
            ([[INV], [S1], [INV]], "1"),
            ([[S1], [S1], [S0]], "01"),
            ([[S0], [S0], [S0]], "02"),
        ):
            calls = " and ".join(rf"redistribute\(placements=\[.*\]\) of input {i}" for i in moved)
            with pytest.raises(ValueError, match=rf"linear_cross_entropy: what ranks hold [^$]*call {calls} before"):
                linear("mean", 9)(*[placed(mesh, a, p) for a, p in zip((x, w, t), places, strict=True)])
    with pytest.raises(IndexError, match="target 9 is not a class"):
        linear("mean", 9)(placed(mesh, x, [INV]), placed(mesh, w, [S0]), placed(mesh, t * 0 + 9, [INV]))


def check_memory(comm):
    """No rank has logits of more than a chunk of rows and of its own classes; nothing else is saved but gradients."""
    mesh, rows, k, num = mesh_of(comm), 256, 8, 400
    x, w = (placed(mesh, numbers(s, np.float32), p) for s, p in (((rows, k), [INV]), ((num, k), [S0])))
    with CommDebugMode() as debug:
        loss = linear("mean", 32)(x, w, placed(mesh, targets((rows,), num), [INV]))
    check_messages(mesh, debug, {"all_gather": rows // 32})
    assert debug.get_comm_bytes()["all_gather"] == (rows * 16 if comm.size > 1 else 0)
    if comm.size == 1:  # classes are whole, and the operation is that of one process
        return
    held = [a for a in loss.local.node.values() if a is not None]
    assert sorted(a.shape for a in held) == sorted([(rows, k), Layout.of(mesh, [S0], (num, k)).local_shape])
