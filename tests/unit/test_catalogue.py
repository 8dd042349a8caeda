"""Finding a served model again on disk."""

from pathlib import Path

import msgspec
import pytest

from partita.catalogue import Catalogue
from partita.core.errors import ModelNotFound
from partita.core.versions import LatestVersions
from partita.settings import ModelSettings, Settings
from tests import models


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    for version in (1, 2):
        (made / "digits" / str(version)).mkdir(parents=True)
        models.linear(made / "digits" / str(version) / "model.onnx")
    models.linear(made / "loose.onnx")
    (made / "broken").mkdir()
    return made


def test_a_model_is_found_by_its_name_wherever_it_was_given(store: Path) -> None:
    for paths in ((store,), (store / "digits", store / "loose.onnx")):
        catalogue = Catalogue(paths=paths)
        assert catalogue.find("digits").version == "2"
        assert catalogue.find("loose").path == store / "loose.onnx"
        assert {"digits": ("2",), "loose": ("1",)}.items() <= catalogue.names().items()


def test_what_was_added_since_is_found(store: Path) -> None:
    catalogue = Catalogue(paths=(store,))
    (store / "digits" / "3").mkdir()
    models.linear(store / "digits" / "3" / "model.onnx")
    models.linear(store / "new.onnx")
    assert catalogue.names() == {"digits": ("3",), "loose": ("1",), "new": ("1",)}
    assert catalogue.find("digits", {"version": 1}).path == store / "digits" / "1" / "model.onnx"


def test_versions_that_are_asked_for_replace_a_policy_and_the_other_way(store: Path) -> None:
    (store / "digits" / "partita.toml").write_text('[model.digits]\nversions = "all"\n')
    catalogue = Catalogue(paths=(store,))
    assert catalogue.names()["digits"] == ("2", "1")
    assert catalogue.find("digits", {"version": 1}).others == ()
    (store / "digits" / "partita.toml").write_text("[model.digits]\nversion = 1\n")
    found = catalogue.find("digits", {"versions": LatestVersions(latest=5)})
    assert [source.version for source in found.served_versions] == ["2", "1"]


OTHERS = ["none", "", ".", "..", "../store/digits", "digits/1", "/etc/passwd", "digits.onnx", "n" * 300]


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_name_leads_anywhere(store: Path, name: str) -> None:
    with pytest.raises(ModelNotFound):
        Catalogue(paths=(store,)).find(name)


def test_settings_of_the_file_the_folder_the_command_line_and_the_request(store: Path) -> None:
    settings = Settings(model={"named": ModelSettings(path=str(store / "loose.onnx"), queue_size=7)})
    catalogue = Catalogue(paths=(store,), settings=settings, changes={"batch": 4})
    named = catalogue.find("named", {"max_batch": 2}).settings
    assert (named.queue_size, named.batch, named.max_batch) == (7, 4, 2)
    (store / "digits" / "partita.toml").write_text("[model.digits]\nqueue_size = 9\n")
    digits = catalogue.find("digits").settings
    assert (digits.queue_size, digits.batch) == (9, 4)
    again = msgspec.structs.replace(settings, model={**settings.model, "digits": ModelSettings(queue_size=5)})
    assert Catalogue(paths=(store,), settings=again).find("digits").settings.queue_size == 5
