import pytest

from factorized_fl.nn import build_model
from factorized_fl.simulate import networks
from factorized_fl.tasks.inputs import Inputs


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and images in float64, so that a comparison sees the arithmetic and not the rounding."""
    ready = Inputs._ready
    monkeypatch.setattr(networks, "build_model", lambda *given, **named: build_model(*given, **named).double())
    monkeypatch.setattr(Inputs, "_ready", lambda inputs, pixels: ready(inputs, pixels).double())
