"""Reproducible runs on ranks that are threads: the bits of one rank, for DDP, FSDP and copies of shards."""

import functools
import threading

import ml_dtypes
import numpy as np
import pytest
from reproducible_suite import assert_same, batch, looped, model_of, place, trained

from hpcdist.autograd import no_grad
from hpcdist.backends import rounding
from hpcdist.comm.init import init, using_group
from hpcdist.comm.local import run
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.errors import CheckpointError, LaunchError
from hpcdist.parallel import MixedPrecisionPolicy
from hpcdist.parallel.summation import RunSum

RUNS = [*(("ddp", n) for n in (2, 3, 4)), *(("fsdp", n) for n in (1, 2, 3, 4)), ("hsdp", 2), ("hsdp", 4)]


def on(size, main, *args):
    return run(size, main, *args, reproducible=True)


@functools.cache
def alone(num_micro):
    return on(1, trained, "ddp", num_micro)[0]


@pytest.mark.parametrize(
    ("kind", "size", "num_micro"), [*((*run, n) for run in RUNS for n in (12, 7)), ("ddp", 4, 16), ("fsdp", 3, 16)]
)
def test_losses_norms_weights_and_moments(kind, size, num_micro):
    for found in on(size, trained, kind, num_micro):
        assert_same(found, alone(num_micro))


def test_clipping_and_dropout_were_active():
    found = alone(7)
    assert min(found["norms"]) > 0.5
    model = model_of(dropout=0.0)
    assert on(1, trained, "ddp", 7, 1, model)[0]["losses"][0, 0] != found["losses"][0, 0]


def test_the_fast_way_has_other_bits():
    """Else the tests here would show nothing."""

    def fast(comm):
        model = model_of(dropout=0.0)
        strategy = place(model, comm, "ddp")
        strategy.set_gradient_divide_factor(1)
        for index in strategy.turns(12):
            with strategy.micro_batch(index, of=12):
                model(*batch(0, index, 12)).backward()
        return np.concatenate([p.grad.reshape(-1) for p in model.parameters()])

    one, two = run(1, fast)[0], run(2, fast)[0]
    assert (one != two).any()
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)
    three, four = on(1, fast)[0], on(4, fast)[0]
    np.testing.assert_array_equal(three, four)
    np.testing.assert_allclose(one, three, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_buckets_do_not_matter(bucket_bytes):
    main = functools.partial(trained, bucket_bytes=bucket_bytes)
    assert_same(on(3, main, "ddp", 7)[0], alone(7))


def test_16_bit_messages():
    """Leaves are rounded to what travels, and added up in float32."""
    policy = MixedPrecisionPolicy(param_dtype=ml_dtypes.bfloat16, reduce_dtype=ml_dtypes.bfloat16)
    main = functools.partial(trained, mp_policy=policy)
    one, *others = (on(size, main, "fsdp", 7, 2)[0] for size in (1, 2, 3))
    for found in others:
        assert_same(found, one)
    assert one["losses"] != alone(7)["losses"]


# ---------------------------------------------------------------- what travels
@pytest.mark.parametrize(
    ("size", "num_micro", "pieces"), [(2, 8, 1), (2, 12, 2), (3, 12, 1), (4, 16, 1), (4, 12, 2), (2, 7, 2)]
)
def test_bytes_of_a_step(size, num_micro, pieces):
    """One all_to_all of whole subtrees and one all_gather a bucket: k times a reduce-scatter, and its other half."""

    def main(comm):
        model = model_of()
        replica = place(model, comm, "ddp", bucket_bytes=1 << 30)
        with CommDebugMode() as mode:
            for index in replica.turns(num_micro):
                with replica.micro_batch(index, of=num_micro):
                    model(*batch(0, index, num_micro)).backward()
        buffer = replica._buckets[0].buffer.nbytes
        return mode.get_comm_counts(), replica.comm.payload_bytes["all_to_all"] / buffer

    told = on(size, main)
    assert all(counts == {"all_to_all": 1, "all_gather": 1} for counts, _ in told)
    assert max(k for _, k in told) == pieces


@pytest.mark.parametrize(("size", "num_micro", "rounds"), [(2, 7, 4), (3, 7, 3), (4, 4, 1)])
def test_messages_of_a_step_of_shards(size, num_micro, rounds):
    """Two gatherings and an exchange a unit and micro-batch; the outermost unit stays gathered for backward."""

    def main(comm):
        model = model_of()
        strategy = place(model, comm, "fsdp")
        with CommDebugMode() as mode:
            for turn in strategy.turns(num_micro):
                with strategy.micro_batch(turn, of=num_micro):
                    model(*batch(0, turn or 0, num_micro)).backward()
        return mode.get_comm_counts()

    assert on(size, main) == [{"all_gather": 5 * rounds, "all_to_all": 3 * rounds}] * size


def test_a_stack_of_sums_is_all_that_is_kept():
    def main(comm):
        sums = RunSum(comm, 16)
        for index in range(16):
            sums.add(index, np.full(3, index, np.float32))
            assert len(sums.sums.nodes) <= 4
        return sums.post().wait().tolist()

    assert on(1, main) == [[120.0] * 3]


# ---------------------------------------------------------------- what is refused, and what goes on after it
def test_a_micro_batch_has_to_be_named():
    def main(comm, kind):
        model = model_of()
        strategy = place(model, comm, kind)
        with pytest.raises(RuntimeError, match="which micro-batch") as error:
            model(*batch(0, 0, 4)).backward()
        assert "micro_batch(index, of=number)" in str(error.value)
        with no_grad():
            model(*batch(0, 0, 4))
        with pytest.raises(ValueError, match="index"), strategy.micro_batch(7, of=4):
            pass
        with pytest.raises(ValueError, match="index"), strategy.micro_batch(1 - comm.rank, of=4):
            pass
        assert_same(trained(comm, kind, 7), alone(7))

    for kind in ("ddp", "fsdp"):
        on(2, main, kind)


def test_micro_batches_are_not_added_up_out_of_order():
    def ddp(comm):
        model = model_of()
        replica = place(model, comm, "ddp")
        first, *_, last = replica.turns(8)
        with replica.micro_batch(first, of=8):
            model(*batch(0, first, 8)).backward()
        with pytest.raises(ValueError, match=f"expected {first + 1}, or {first} to begin"):
            replica.micro_batch(last, of=8).__enter__()
        with pytest.raises(RuntimeError, match="no_sync"):
            replica.no_sync()
        with pytest.raises(RuntimeError, match="as they come"):
            replica.set_requires_gradient_sync(False)

    def fsdp(comm):
        model = model_of()
        strategy = place(model, comm, "fsdp")
        with pytest.raises(RuntimeError, match="expected 0"), strategy.micro_batch(2 + comm.rank, of=8):
            model(*batch(0, 2, 8))
        with strategy.no_sync(), strategy.micro_batch(comm.rank, of=8), pytest.raises(RuntimeError, match="exchange"):
            model(*batch(0, 2, 8))
        with strategy.micro_batch(comm.rank, of=8):
            model(*batch(0, 2, 8)).backward()
        with pytest.raises(RuntimeError, match="expected 2"), strategy.micro_batch(4 + comm.rank, of=8):
            model(*batch(0, 2, 8))

    on(2, ddp)
    on(2, fsdp)


def test_gradients_that_are_there_already():
    def main(comm):
        model = model_of()
        replica = place(model, comm, "ddp")
        for index in replica.turns(2):
            with replica.micro_batch(index, of=2):
                model(*batch(0, index, 2)).backward()
        with replica.micro_batch(comm.rank, of=2), pytest.raises(RuntimeError, match="zero_grad"):
            model(*batch(0, 0, 2))

    on(2, main)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_step_that_failed_on_all_ranks_begins_anew(kind, at):
    """An exception between forward and backward leaves nothing behind that counts."""

    def main(comm):
        model = model_of(dropout=0.0)
        strategy = place(model, comm, kind)
        for number, turn in enumerate(strategy.turns(4)):
            with strategy.micro_batch(turn, of=4):
                loss = model(*batch(9, turn, 4))
                if number == at:
                    break
                loss.backward()
        for turn in strategy.turns(4):
            with strategy.micro_batch(turn, of=4):
                model(*batch(0, turn, 4)).backward()
        gradients = [p.gradient().full_tensor().data if kind == "fsdp" else p.grad for p in model.parameters()]
        return np.concatenate([g.reshape(-1) for g in gradients])

    def clean(comm):
        model = model_of(dropout=0.0)
        replica = place(model, comm, "ddp")
        for turn in replica.turns(4):
            with replica.micro_batch(turn, of=4):
                model(*batch(0, turn, 4)).backward()
        return np.concatenate([p.grad.reshape(-1) for p in model.parameters()])

    np.testing.assert_array_equal(on(2, main)[0], on(1, clean)[0])


@pytest.mark.parametrize(("kind", "failing"), [("ddp", {0}), ("ddp", {0, 1}), ("fsdp", {0, 1})])
def test_after_a_backward_that_failed(kind, failing):
    """DDP: others wait for one that failed, until it begins the next step."""

    def fail(_):
        raise ZeroDivisionError

    def main(comm):
        model = model_of()
        strategy = place(model, comm, kind)
        *early, last = strategy.turns(4)
        for turn in early:
            with strategy.micro_batch(turn, of=4):
                model(*batch(9, turn, 4)).backward()
        with strategy.micro_batch(last, of=4):
            loss = model(*batch(9, last, 4))
            if comm.rank in failing:
                remove = (model.blocks[1].mlp.fc1.bias if kind == "fsdp" else loss).register_hook(fail)
                with pytest.raises(ZeroDivisionError):
                    loss.backward()
                remove()
            else:
                loss.backward()
        model.zero_grad()
        return trained(comm, kind, 7, model=model, placed=strategy)

    assert_same(on(2, main)[1], alone(7))


def test_freezing_within_a_step_is_refused():
    def main(comm):
        model = model_of()
        replica = place(model, comm, "ddp")
        first, second = replica.turns(4)
        with replica.micro_batch(first, of=4):
            model(*batch(0, first, 4)).backward()
        model.blocks[0].ln1.weight.requires_grad = False
        with replica.micro_batch(second, of=4), pytest.raises(RuntimeError, match="other parameters"):
            model(*batch(0, second, 4))

    on(2, main)


# ---------------------------------------------------------------- the loop, and resuming
@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    return on(1, looped, "ddp", tmp_path_factory.mktemp("alone"), 6)[0]


@pytest.mark.parametrize(("kind", "size"), [("ddp", 3), ("fsdp", 2), ("fsdp", 4), ("hsdp", 4)])
def test_the_loop(kind, size, tmp_path, logged):
    """Also the validation, whose 5 batches ranks share."""
    for found in on(size, looped, kind, tmp_path, 6):
        assert found.keys() == logged.keys()
        assert_same(found, logged)
    assert [(r[0], r[2] is not None) for r in logged["losses"]] == [(n, n % 3 == 0) for n in range(1, 7)]


@pytest.mark.parametrize(("kind", "size"), [("ddp", 3), ("fsdp", 3), ("hsdp", 4)])
def test_the_loop_of_fast_runs_shares_the_same_micro_batches(kind, size, tmp_path, logged):
    found = run(size, looped, kind, tmp_path, 6)[0]
    np.testing.assert_allclose([r[1] for r in found["losses"]], [r[1] for r in logged["losses"]], rtol=1e-5)


@pytest.mark.parametrize(
    ("first", "then"),
    [(("ddp", 2), ("ddp", 3)), (("fsdp", 2), ("fsdp", 3)), (("ddp", 1), ("fsdp", 2)), (("fsdp", 3), ("ddp", 1))],
)
def test_a_run_goes_on_with_another_number_of_ranks(first, then, tmp_path, logged):
    on(first[1], looped, first[0], tmp_path, 4)
    for found in on(then[1], functools.partial(looped, resume=True), then[0], tmp_path, 6):
        found["losses"][3][2] = None  # the first run ended, and validated, there
        assert found.keys() == logged.keys()
        assert_same(found, logged)


def test_a_run_does_not_go_on_where_bits_would_differ(tmp_path, monkeypatch):
    on(1, looped, "ddp", tmp_path, 1)
    here = rounding.settings()
    monkeypatch.setattr(rounding, "settings", lambda: {**here, "threads": here["threads"] + 1})
    with pytest.raises(CheckpointError, match=r"threads is not that of the run\n.*\n.*\n.*threads"):
        on(1, functools.partial(looped, resume=True), "ddp", tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="global_batch"):
        on(1, functools.partial(looped, resume=True, num_micro=8), "ddp", tmp_path, 2)


def test_what_changes_during_a_run_is_found_when_it_saves(tmp_path, monkeypatch):
    here = rounding.settings()
    told = iter([here, here, {**here, "subnormals": 0}])  # to the state, the loop, and when it saves
    monkeypatch.setattr(rounding, "settings", lambda: next(told))
    with pytest.raises(LaunchError, match="subnormals is another one since the run began"):
        on(1, looped, "ddp", tmp_path, 1)


def test_ranks_that_round_differently_are_refused(monkeypatch):
    settings = rounding.settings()

    def of_this_rank():
        return settings | ({"blas": "another"} if threading.current_thread().name == "rank-1" else {})

    def main(comm):
        expected = r"blas is another one on rank 1 than on rank 0\n *got +another"
        with pytest.raises(LaunchError, match=expected), using_group(comm):
            init(comm, reproducible=True, threads=1)

    monkeypatch.setattr("hpcdist.backends.cpu.set_threads", lambda *_: 1)
    monkeypatch.setattr(rounding, "settings", of_this_rank)
    on(3, main)


def test_a_loop_without_a_strategy_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("reproducible_suite.place", lambda *_: None)
    with pytest.raises(ValueError, match="strategy"):
        on(1, looped, "ddp", tmp_path, 1)
