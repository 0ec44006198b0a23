import math

import pytest
import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.nn import build_model, factorize

NAMES = ["resnet9", "resnet18", "cnn"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_size_from_8(name, channels):
    model = build_model(name, 5, channels=channels, width=0.125).eval()
    with torch.inference_mode():
        for size in range(8, 41):
            assert model(torch.randn(2, channels, size, size)).shape == (2, 5)
        assert model(torch.randn(1, channels, 8, 33)).shape == (1, 5)


def test_resnet9_pads_small_maps_only():
    torch.manual_seed(0)
    model = build_model("resnet9", 3, width=0.125).eval()
    seen = []
    model.conv8.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[2:])))
    for size in (8, 11, 12, 32):
        model(torch.randn(1, 3, size, size))
    assert seen == [(3, 3), (3, 3), (3, 3), (8, 8)]


def test_resnet9_is_the_one_of_the_paper():
    model = build_model("resnet9", 10)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [tuple(c.weight.shape) for c in convolutions] == [
        (64, 3, 3, 3),
        (128, 64, 5, 5),
        (128, 128, 3, 3),
        (128, 128, 3, 3),
        (256, 128, 3, 3),
        (256, 256, 3, 3),
        (256, 256, 3, 3),
        (256, 256, 3, 3),
    ]
    assert [c.stride[0] for c in convolutions] == [1, 2, 1, 1, 1, 1, 1, 1]
    assert [c.padding[0] for c in convolutions] == [1, 2, 1, 1, 1, 1, 1, 0]
    assert all(c.bias is None for c in convolutions)
    assert isinstance(model.head, nn.Linear)
    assert model.head.weight.shape == (10, 256)


def test_resnet9_computes_the_blocks_of_the_paper():
    torch.manual_seed(0)
    model = build_model("resnet9", 3, width=0.125).eval()
    x = torch.randn(2, 3, 32, 32)

    def block(number, y):
        part = getattr(model, f"conv{number}")
        return torch.relu(part.norm(part.conv(y)))

    y = block(2, block(1, x))
    y = y + block(4, block(3, y))
    y = nn.functional.max_pool2d(block(5, y), 2)
    y = y + block(7, block(6, y))
    y = block(8, y).amax((2, 3))
    torch.testing.assert_close(model(x), y @ model.head.weight.T + model.head.bias)


def test_resnet18_is_the_usual_one_for_small_images():
    model = build_model("resnet18", 10)
    # The well-known count of the CIFAR variant: 3 x 3 stem, projection shortcuts, one fully connected layer.
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    seen = []
    for stage in (model.stem, model.stage1, model.stage2, model.stage3, model.stage4):
        stage.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
    model.eval()(torch.randn(1, 3, 32, 32))
    assert seen == [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_resnet18_computes_basic_blocks():
    model = build_model("resnet18", 3, width=0.125).eval()
    # Different running means make a missing or superfluous ReLU visible.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.5)
    x = torch.randn(2, 3, 32, 32)

    y = torch.relu(model.stem.norm(model.stem.conv(x)))
    for block in (*model.stage1, *model.stage2, *model.stage3, *model.stage4):
        inner = torch.relu(block.conv1.norm(block.conv1.conv(y)))
        beside = y if isinstance(block.shortcut, nn.Identity) else block.shortcut.norm(block.shortcut.conv(y))
        y = torch.relu(block.conv2.norm(block.conv2.conv(inner)) + beside)
    torch.testing.assert_close(model(x), y.mean((2, 3)) @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("name", NAMES)
def test_heads(name):
    two = build_model(name, 7, width=0.125, head_layers=2).head
    assert [type(part) for part in two] == [nn.Linear, nn.ReLU, nn.Linear]
    features = two[0].in_features
    assert (two[0].out_features, two[2].in_features, two[2].out_features) == (features, features, 7)
    normed = build_model(name, 7, width=0.125, head_layers=2, head_norm=True).head
    assert [type(part) for part in normed] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert all(part.bias is not None for part in (two[0], two[2]))
    wide = build_model(name, 7, width=0.125, head_layers=2, head_norm=True, head_width=11).head
    assert [wide[0].out_features, wide[1].num_features, wide[3].in_features] == [11, 11, 11]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factorised", [False, True])
def test_bodies_agree_for_all_numbers_of_classes(name, factorised):
    def body(classes):
        torch.manual_seed(5)
        model = build_model(name, classes, width=0.25)
        if factorised:
            factorize(model, generator=torch.Generator().manual_seed(6))
        return {k: v for k, v in model.state_dict().items() if not k.startswith("head")}

    small, large = body(3), body(10)
    assert list(small) == list(large)
    assert all(torch.equal(small[name], large[name]) for name in small)
    torch.manual_seed(7)
    other = build_model(name, 3, width=0.25)
    assert not torch.equal(next(other.parameters()), next(iter(small.values())))


@pytest.mark.parametrize(
    ("width", "expected"),
    [(1.0, (16, 32, 64)), (0.5, (8, 16, 32)), (0.1, (8, 8, 8)), (1.3, (24, 40, 80)), (2, (32, 64, 128))],
)
def test_width_scales_all_channels(width, expected):
    model = build_model("cnn", 4, width=width)
    assert tuple(getattr(model, f"conv{i}").conv.out_channels for i in (1, 2, 3)) == expected
    assert model.head.in_features == expected[-1]
    assert model.eval()(torch.randn(1, 3, 16, 16)).shape == (1, 4)


@pytest.mark.parametrize("name", NAMES)
def test_a_factorised_network_learns(name):
    torch.manual_seed(0)
    model = factorize(build_model(name, 2, width=0.125, channels=1))
    x, y = torch.randn(8, 1, 12, 12), torch.arange(8) % 2
    x[y == 1] += 1.0
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("name", "classes", "options", "message"),
    [
        ("resnet", 10, {}, "Unknown model 'resnet'. Did you mean 'resnet9'?"),
        ("cnn", 0, {}, "number of classes of at least 1, not 0"),
        ("cnn", 2.5, {}, "number of classes of at least 1, not 2.5"),
        ("cnn", 2, {"channels": 0}, "number of channels of at least 1"),
        ("cnn", 2, {"width": 0.0}, "must be a number above 0"),
        ("cnn", 2, {"width": math.nan}, "must be a number above 0"),
        ("cnn", 2, {"head_layers": 3}, "1 or 2 layers, not 3"),
        ("cnn", 2, {"head_norm": True}, "set head_layers=2"),
        ("cnn", 2, {"head_width": 9}, "set head_layers=2"),
    ],
)
def test_mistakes_are_explained(name, classes, options, message):
    with pytest.raises(UserError, match=message):
        build_model(name, classes, **options)


def test_the_small_network_sees_the_whole_image():
    torch.manual_seed(0)
    model = build_model("cnn", 3, channels=1).eval()
    x = torch.randn(1, 1, 16, 16, requires_grad=True)
    hidden = []
    model.conv3.conv.register_forward_hook(lambda _, __, out: hidden.append(out))
    model(x)
    (seen,) = torch.autograd.grad(hidden[0][0, 0, 0, 0], x)
    rows, columns = (seen[0, 0] != 0).nonzero().T
    assert (int(rows.max() - rows.min()), int(columns.max() - columns.min())) == (15, 15)


def test_the_small_network_learns_digits_from_few_images():
    from factorized_fl.data.sources import load

    torch.manual_seed(0)
    images = next(domain for domain in load("embedded", None, size=None, channels=1) if domain.name == "digits")
    x, y = images.images.float() / 64 - 2, images.labels
    model = build_model("cnn", len(images.classes), channels=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(25):
        for at in torch.randperm(80).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[at]), y[at]).backward()
            optimiser.step()
    with torch.no_grad():
        right = (model.eval()(x[80:680]).argmax(1) == y[80:680]).float().mean()
    assert right > 0.65  # the network with a global maximum had less than half of them right
