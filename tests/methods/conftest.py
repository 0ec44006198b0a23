import pytest

from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.nn import build_model
from factorized_fl.simulate import build


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and images in float64, so that a comparison sees the arithmetic and not the rounding."""
    ready = ReferenceEngine._ready
    monkeypatch.setattr(build, "build_model", lambda *given, **named: build_model(*given, **named).double())
    monkeypatch.setattr(ReferenceEngine, "_ready", lambda engine, pixels: ready(engine, pixels).double())
