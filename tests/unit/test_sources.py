"""From paths to models: files, folders, repositories, and what is said where there is none."""

from pathlib import Path

import pytest

from partita import sources
from partita.core.errors import InvalidInput, MissingExtra
from partita.settings import ModelSettings, Settings
from partita.sources import find_all, find_models

HANDLER = "class Digits:\n    def preprocess(self, items):\n        return items\n"
MODEL_CLASS = "class Twice:\n    inputs = {}\n    def infer(self, batch):\n        return batch\n"


def _touch(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_an_onnx_file(tmp_path: Path) -> None:
    file = _touch(tmp_path / "resnet.onnx")
    (source,) = find_models(file)
    assert (source.name, source.version, source.path, source.runtime) == ("resnet", "1", file, "onnxruntime")
    assert source.handler is None
    assert source.load_path == str(file)


def test_the_highest_version_serves(tmp_path: Path) -> None:
    for version in ("1", "2", "10"):
        _touch(tmp_path / "digits" / version / "model.onnx")
    _touch(tmp_path / "digits" / "notes" / "x.onnx")
    (source,) = find_models(tmp_path / "digits")
    assert (source.name, source.version) == ("digits", "10")
    assert source.path == tmp_path / "digits/10/model.onnx"


def test_a_folder_with_settings_and_handler(tmp_path: Path) -> None:
    for version in ("1", "2"):
        _touch(tmp_path / "digits" / version / "model.onnx")
    _touch(tmp_path / "digits/partita.toml", "[model.digits]\nversion = 1\nmax_batch = 4\n")
    handler = _touch(tmp_path / "digits/handler.py", HANDLER)
    (source,) = find_models(tmp_path / "digits")
    assert source.version == "1"
    assert source.max_batch == 4
    assert source.runtime == "onnxruntime"
    assert source.handler == source.load_handler == f"{handler}:Digits"


def test_the_config_file_overrides_the_folders_own(tmp_path: Path) -> None:
    _touch(tmp_path / "digits/1/model.onnx")
    _touch(tmp_path / "digits/partita.toml", "[model.digits]\nmax_batch = 4\n")
    (source,) = find_models(tmp_path / "digits", Settings(model={"digits": ModelSettings(max_batch=8)}))
    assert source.max_batch == 8


def test_a_triton_folder(tmp_path: Path) -> None:
    _touch(tmp_path / "resnet/1/model.onnx")
    _touch(
        tmp_path / "resnet/config.pbtxt",
        'name: "resnet" # max_batch_size: 3\nplatform: "onnxruntime_onnx"\n'
        'input [ { name: "x{", dims: [ 3, -1 ] max_batch_size: 5 } ]\n'
        "max_batch_size : 16\ndynamic_batching { preferred_batch_size: [4] }\n",
    )
    (source,) = find_models(tmp_path / "resnet")
    assert source.max_batch_size == 16
    assert source.max_batch == 16


def test_settings_are_above_config_pbtxt(tmp_path: Path) -> None:
    _touch(tmp_path / "m/1/model.onnx")
    _touch(tmp_path / "m/config.pbtxt", "max_batch_size: 64")
    _touch(tmp_path / "m/partita.toml", "[model.m]\nmax_batch = 2")
    assert find_models(tmp_path / "m")[0].max_batch == 2


POLICIES = {
    "": ["3"],
    "version_policy: { latest { num_versions: 2 } }": ["3", "2"],
    "version_policy { latest: { } }": ["3"],
    "version_policy: < all < > >": ["3", "2", "1"],
    "max_batch_size: 4 version_policy: { specific: { versions: [ 1, 3 ] } } name: 'm'": ["3", "1"],
    "version_policy { specific { versions: 1; versions: 2 } }": ["2", "1"],
    "ensemble_scheduling { step [ { version_policy: 3 } ] }": ["3"],
}


@pytest.mark.parametrize("text", POLICIES)
def test_the_version_policy_of_a_triton_folder(tmp_path: Path, text: str) -> None:
    for version in (1, 2, 3):
        _touch(tmp_path / f"m/{version}/model.onnx", str(version))
    _touch(tmp_path / "m/config.pbtxt", text)
    (source,) = find_models(tmp_path / "m")
    served = source.served_versions
    assert [one.version for one in served] == POLICIES[text]
    assert [one.path.read_text() for one in served] == POLICIES[text]
    assert all(one.others == () and one.name == "m" for one in served)
    assert [one.name for one in source.renamed("other").served_versions] == ["other"] * len(served)


@pytest.mark.parametrize(
    ("said", "served"),
    [
        ('versions = "all"', ["3", "2", "1"]),
        ("versions = { latest = 2 }", ["3", "2"]),
        ("versions = [1]", ["1"]),
    ],
)
def test_versions_by_our_own_settings(tmp_path: Path, said: str, served: list[str]) -> None:
    for version in (1, 2, 3):
        _touch(tmp_path / f"m/{version}/model.onnx")
    _touch(tmp_path / "m/config.pbtxt", "version_policy: { specific { versions: 2 } }")
    _touch(tmp_path / "m/partita.toml", f"[model.m]\n{said}\n")
    (source,) = find_models(tmp_path / "m")
    assert [one.version for one in source.served_versions] == served
    named = Settings(model={"other": ModelSettings(path=str(tmp_path / "m"), version=2)})
    (source,) = find_all((), named)
    assert (source.name, source.version, source.others) == ("other", "2", ())


@pytest.mark.parametrize(
    "said", ["versions = []", "versions = [9]", "versions = 'some'", "version = 1\nversions = [1]"]
)
def test_versions_that_are_none(tmp_path: Path, said: str) -> None:
    _touch(tmp_path / "m/1/model.onnx")
    _touch(tmp_path / "m/partita.toml", f"[model.m]\n{said}\n")
    with pytest.raises(InvalidInput, match="version"):
        find_models(tmp_path / "m")


BROKEN = [
    "max_batch_size: many",
    "max_batch_size:",
    "???",
    "version_policy { some { } }",
    "version_policy { latest { num_versions: few } }",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    _touch(tmp_path / "m/1/model.onnx")
    _touch(tmp_path / "m/config.pbtxt", text)
    with pytest.raises(InvalidInput, match=r"config\.pbtxt"):
        find_models(tmp_path / "m")


def test_a_repository_of_folders_and_files(tmp_path: Path) -> None:
    _touch(tmp_path / "b/1/model.onnx")
    _touch(tmp_path / "a/3/only.onnx")
    _touch(tmp_path / "z.onnx")
    (tmp_path / "empty").mkdir()
    sources = find_models(tmp_path)
    assert [(s.name, s.version) for s in sources] == [("z", "1"), ("a", "3"), ("b", "1")]
    assert sources[1].path.name == "only.onnx"


def test_a_handler_is_a_model_by_itself(tmp_path: Path) -> None:
    code = _touch(tmp_path / "twice/handler.py", MODEL_CLASS)
    for path in (tmp_path / "twice", code):
        (source,) = find_models(path)
        assert source.runtime == "python"
        assert source.load_path == f"{code}:Twice"
        assert source.load_handler is None
    assert find_models(tmp_path / "twice")[0].name == "twice"


def test_a_class_is_chosen_by_its_methods_or_by_name(tmp_path: Path) -> None:
    code = _touch(tmp_path / "m/handler.py", "class Base: pass\n" + MODEL_CLASS)
    assert find_models(tmp_path / "m")[0].handler == f"{code}:Twice"
    code.write_text(MODEL_CLASS + HANDLER)
    with pytest.raises(InvalidInput, match=r"several handlers \(Twice, Digits\)"):
        find_models(tmp_path / "m")
    _touch(tmp_path / "m/partita.toml", '[model.m]\nhandler = "handler.py:Digits"')
    assert find_models(tmp_path / "m")[0].handler == f"{code}:Digits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no class with a method"),
        ("class A:\n  def f(:", "is not Python"),
        ("import os\nos._exit(3)", "no class"),
    ],
)
def test_a_handler_file_is_read_and_not_run(tmp_path: Path, text: str, message: str) -> None:
    _touch(tmp_path / "m/handler.py", text)
    with pytest.raises(InvalidInput, match=message):
        find_models(tmp_path / "m")


@pytest.mark.parametrize("handler", ["handler.py", "handler:Class", "other.py:Class", "handler.py:1"])
def test_a_wrong_handler_setting(tmp_path: Path, handler: str) -> None:
    _touch(tmp_path / "m/handler.py", HANDLER)
    _touch(tmp_path / "m/partita.toml", f'[model.m]\nhandler = "{handler}"')
    with pytest.raises(InvalidInput, match="handler = "):
        find_models(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("m.mar", InvalidInput, "is no archive"),
        ("m.txt", InvalidInput, "expected an .onnx or .mar file"),
    ],
)
def test_files_that_this_build_does_not_serve(
    tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        find_models(_touch(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("m.onnx", "onnxruntime"),
        ("m.xml", "openvino"),
        ("m.pt", "torch-script"),
        ("m.pt2", "torch-eager"),
        ("m.safetensors", "torch-eager"),
        ("m/1/model.pt", "torch-script"),
        ("m/1/net.pt2", "torch-eager"),
        ("m/model.xml", "openvino"),
    ],
)
def test_every_format_has_its_runtime(
    tmp_path: Path, name: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda module: module)  # whatever is installed here
    file = _touch(tmp_path / name)
    _touch(file.with_suffix(".bin"))
    (source,) = find_models(tmp_path / name.split("/", maxsplit=1)[0])
    assert (source.name, source.path, source.runtime) == ("m", file, runtime)


def test_a_file_of_weights_is_one_where_a_factory_builds_its_network(tmp_path: Path) -> None:
    file = _touch(tmp_path / "m.pt")
    settings = ModelSettings(options={"factory": "net.py:build"})
    (source,) = find_models(file, Settings(model={"m": settings}))
    assert source.runtime == "torch-eager"


@pytest.mark.parametrize(("name", "extra"), [("m.pt", "torch"), ("m.pt2", "torch"), ("m.xml", "openvino")])
def test_a_runtime_whose_package_is_missing_names_its_extra(
    tmp_path: Path, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda module: None)
    with pytest.raises(MissingExtra, match=rf"partita\[{extra}\]"):
        find_models(_touch(tmp_path / name))
    _touch(tmp_path / "f/1" / name)
    with pytest.raises(MissingExtra, match=rf"partita\[{extra}\]"):
        find_models(tmp_path / "f")


def test_a_path_that_does_not_exist_names_what_is_near(tmp_path: Path) -> None:
    _touch(tmp_path / "resnet50.onnx")
    with pytest.raises(InvalidInput, match=r"does not exist; near it there is .*resnet50\.onnx"):
        find_models(tmp_path / "resnet5.onnx")
    with pytest.raises(InvalidInput, match=r"does not exist$"):
        find_models(tmp_path / "nothing" / "like" / "it")


def test_empty_and_ambiguous_folders(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no model"):
        find_models(tmp_path)
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"holds no model\.onnx"):
        find_models(tmp_path / "m")
    _touch(tmp_path / "m/1/a.onnx")
    _touch(tmp_path / "m/1/b.onnx")
    with pytest.raises(InvalidInput, match=r"2 \.onnx files"):
        find_models(tmp_path / "m")


def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    _touch(tmp_path / "m/1/model.onnx")
    with pytest.raises(InvalidInput, match=r"no version 7; there are 1"):
        find_models(tmp_path / "m", Settings(model={"m": ModelSettings(version=7)}))


def test_all_paths_and_settings_together(tmp_path: Path) -> None:
    file = _touch(tmp_path / "a.onnx")
    _touch(tmp_path / "elsewhere/1/model.onnx")
    settings = Settings(model={"other": ModelSettings(path=str(tmp_path / "elsewhere"), max_batch=2)})
    a, other = find_all((file,), settings)
    assert (a.name, other.name, other.max_batch) == ("a", "other", 2)
    with pytest.raises(InvalidInput, match="two models are named a"):
        find_all((file, _touch(tmp_path / "x" / "a.onnx")), Settings())
    with pytest.raises(InvalidInput, match=r"\[model\.b\] names no model given; there are a"):
        find_all((file,), Settings(model={"b": ModelSettings()}))
