import json

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core import payload
from factorized_fl.core.errors import UserError
from factorized_fl.core.payload import data_bytes, decode, encode, measure, occupied

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
# "|" separates a name from the suffix of a sparse part; every other character may occur in a name.
NAMES = st.text(st.characters(exclude_characters="|", exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)


def sizes(tensors: dict[str, torch.Tensor]) -> tuple[int, int]:
    return measure({n: (tuple(t.shape), t.dtype, int(occupied(t).sum())) for n, t in tensors.items()})


def random_tensor(shape: list[int], kind: torch.dtype, density: float, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < density)
    if kind == torch.bool:
        return values != 0
    return values.to(kind) if kind in FLOATS else (100 * values).abs().clamp(max=127).to(kind)


@st.composite
def payloads(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors of several types, dense and sparse, with names in any script."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return {
        name: random_tensor(
            draw(st.lists(st.integers(0, 40), max_size=3)),
            draw(st.sampled_from([*FLOATS, *INTEGERS, torch.bool])),
            draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 1.0])),
            generator,
        )
        for name in names
    }


@settings(max_examples=150, deadline=None)
@given(tensors=payloads())
def test_a_payload_round_trips_exactly_and_is_as_long_as_measured(tensors: dict[str, torch.Tensor]) -> None:
    content = encode(tensors)
    back = decode(content)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)
    numbers, length = sizes(tensors)
    assert length == len(content)
    header = int.from_bytes(content[:8], "little")
    parts = json.loads(content[8 : 8 + header])
    values = [name for name in parts if name != "__metadata__" and not name.endswith(("|mask", "|index"))]
    stored = safetensors.torch.load(content)
    assert numbers == sum(stored[name].numel() for name in values)
    by_tensor = sum(data_bytes(tuple(t.shape), t.dtype, int(occupied(t).sum())) for t in tensors.values())
    assert len(content) == 8 + header + by_tensor


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.15, 1.0])
def test_each_type_is_measured_in_each_form_beside_others(kind: torch.dtype, density: float) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "gewicht.größe": random_tensor([70, 1000], kind, density, generator),
        "重み": torch.ones(3),
        'a "quoted"\\name\n': torch.zeros(5, dtype=torch.int16),
        "": torch.zeros(0),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    assert sizes(tensors)[1] == len(encode(tensors))


def test_measuring_serialises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The types are probed once; a payload of 16 GB is then measured without a tensor of that size."""
    payload._dtype_codes()
    payload._length.cache_clear()

    def refuse(*arguments: object) -> bytes:
        raise AssertionError("measuring must not serialise")

    monkeypatch.setattr(safetensors.torch, "save", refuse)
    monkeypatch.setattr(torch, "zeros", refuse)
    count = 4 * 10**9
    found = measure({"w": ((count,), torch.float32, count), "b": ((10,), torch.float32, 10)})
    monkeypatch.undo()
    header = sizes({"w": torch.ones(10), "b": torch.ones(10)})[1] - 80
    assert found[0] == count + 10
    assert 0 <= found[1] - 4 * (count + 10) - header <= 40  # larger numbers in the header
    assert found[1] % 8 == 0


def test_no_tensors_are_no_payload() -> None:
    assert measure({}) == (0, 0)


def test_minus_zero_and_nan_survive() -> None:
    tensor = torch.zeros(4000)
    tensor[7], tensor[9] = -0.0, float("nan")
    back = decode(encode({"mu": tensor}))["mu"]
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize(("survivors", "most"), [(0.0, 0.01), (0.01, 0.03), (0.15, 0.25), (1.0, 1.01)])
def test_a_sparse_mu_costs_little_more_than_its_entries(survivors: float, most: float) -> None:
    """With 15% survivors: a bit mask and the values, 1/32 + 0.15 of dense."""
    mu = torch.randn(256, 256, 3, 3).masked_fill(torch.rand(256, 256, 3, 3) >= survivors, 0.0)
    content = encode({"mu": mu})
    assert len(content) < most * mu.numel() * 4
    assert torch.equal(decode(content)["mu"], mu)
    assert len(content) == sizes({"mu": mu})[1]


def test_a_damaged_payload_is_refused() -> None:
    content = encode({"mu": torch.eye(100)})
    for bad in (b"", content[:50], b"x" * 200):
        with pytest.raises(UserError, match="damaged"):
            decode(bad)
