"""The GPT against the hand-written NumPy one."""

import numpy as np
import numpy_gpt
import pytest

from hpcdist import nn
from hpcdist.autograd import manual_seed

KINDS = [
    {},
    {"mlp": "gelu"},
    {"mlp": "swiglu", "norm": "rms", "positions": "rotary"},
    {"norm": "rms"},
    {"positions": "rotary", "mlp": "gelu"},
]


def build(config, vocab, seq, dtype):
    model = nn.GPT(
        nn.GPTConfig(
            vocab_size=vocab,
            seq=seq,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            width=config.width,
            activation=config.mlp,
            norm=config.norm,
            positions=config.positions,
        )
    )
    return model.to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_losses_and_gradients_equal_the_hand_written_ones(kind, dtype, tolerance):
    config = numpy_gpt.Config(num_layers=2, num_heads=4, width=32, **kind)
    vocab, seq = 17, 70
    scale = 0.3 if dtype == np.float64 else 0.05
    weights = numpy_gpt.random_weights(config, vocab, seq, dtype=dtype, scale=scale)
    rng = np.random.default_rng(1)
    tokens, targets = rng.integers(0, vocab, (2, 3, seq))
    loss, grads = numpy_gpt.loss_and_grads(weights, tokens, targets, config)
    model = build(config, vocab, seq, dtype)
    model.load_state_dict(weights)

    found = model(tokens, targets)
    found.backward()

    assert found.dtype == dtype
    assert abs(found.item() - loss) < tolerance
    assert [name for name, _ in model.named_parameters()] == list(weights)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.grad, grads[name], rtol=0, atol=tolerance, err_msg=name)


def test_logits_give_the_same_loss():
    config = numpy_gpt.Config(num_layers=1, num_heads=2, width=8)
    weights = numpy_gpt.random_weights(config, 11, 5)
    model = build(config, 11, 5, np.float64)
    model.load_state_dict(weights)
    tokens, targets = np.random.default_rng(2).integers(0, 11, (2, 2, 5))
    logits = model(tokens)
    assert logits.shape == (2, 5, 11)
    by_logits = nn.functional.cross_entropy(logits, targets).item()
    assert by_logits == pytest.approx(model(tokens, targets).item(), abs=1e-12)


def test_initial_weights_depend_on_the_seed_and_the_name():
    def first(seed, layers):
        manual_seed(seed)
        model = nn.GPT(nn.GPTConfig(vocab_size=7, seq=4, num_layers=layers, num_heads=2, width=8))
        return dict(model.named_parameters())["blocks.0.mlp.fc1.weight"].data

    np.testing.assert_array_equal(first(3, 1), first(3, 2))
    assert (first(3, 1) != first(4, 1)).all()
    assert first(3, 1).std() == pytest.approx(0.02, rel=0.2)


def test_generation_repeats_with_its_seed_and_starts_with_the_prompt():
    model = nn.GPT(nn.GPTConfig(vocab_size=7, seq=4, num_layers=1, num_heads=2, width=8))
    one, two, other = (model.generate([1, 2], 12, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert one[:2].tolist() == [1, 2]
    assert len(one) == 14
    assert one.tolist() != other.tolist()
    greedy = model.generate([1, 2], 1, temperature=0)
    assert greedy[-1] == model(np.array([[1, 2]])).numpy()[0, -1].argmax()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"width": 9}, "multiple of the 2 heads"), ({"activation": "elu"}, "activation"), ({"norm": "batch"}, "norm")],
)
def test_wrong_sizes_and_kinds_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        nn.GPT(nn.GPTConfig(**{"vocab_size": 7, "seq": 4, "num_layers": 1, "num_heads": 2, "width": 8, **change}))


def test_input_longer_than_the_positions_is_an_error():
    model = nn.GPT(nn.GPTConfig(vocab_size=7, seq=4, num_layers=1, num_heads=2, width=8))
    with pytest.raises(ValueError, match=r"seq <= 4"):
        model(np.zeros((1, 5), np.int64))
