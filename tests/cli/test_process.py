"""A machine with libtpu and without a TPU computes on its CPU, and libtpu is not asked."""

import pytest

from moejax.cli.process import keep_libtpu_quiet


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A libtpu, and a folder of devices."""
    (tmp_path / "libtpu.py").touch()
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    (tmp_path / "dev" / "vfio" / "vfio").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "dev"


def platforms(devices, **environment):
    keep_libtpu_quiet(environment, devices)
    return environment.get("JAX_PLATFORMS")


def test_without_an_accelerator_jax_computes_on_the_cpu(installed):
    assert platforms(installed) == "cpu"


@pytest.mark.parametrize("device", ["accel0", "vfio/0", "nvidia0", "kfd"])
def test_where_there_is_an_accelerator_jax_chooses(installed, device):
    (installed / device).touch()
    assert platforms(installed) is None


def test_what_the_user_has_set_stays(installed):
    assert platforms(installed, JAX_PLATFORMS="tpu,cpu") == "tpu,cpu"
    assert platforms(installed, JAX_FORCE_TPU_INIT="1") is None


def test_without_libtpu_nothing_is_set(installed, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert platforms(installed) is None
