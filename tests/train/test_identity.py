"""A folder belongs to one training: how it is computed may change, what decides its numbers only when told."""

import dataclasses
import json

import pytest

from moejax.data.config import WeightedSource
from moejax.folder import only_writer
from moejax.stored import read_json, write_json
from moejax.train.directory import identity
from moejax.train.directory.identity import decisive_changes, own, read_history
from moejax.train.directory.row_file import row_file
from moejax.train.loop import train
from moejax.train.mesh import MeshShape


def changed(training, **changes):
    """The training with other settings, by their paths with _ for the dot after recipe."""
    recipe = training.recipe
    for name, value in changes.items():
        group, _, field = name.partition("__")
        value = dataclasses.replace(getattr(recipe, group), **{field: value}) if field else value
        recipe = dataclasses.replace(recipe, **{group: value})
    return dataclasses.replace(training, recipe=recipe)


RESUMABLE = [
    {"mesh": MeshShape(data=2, expert=4)},
    {"runtime__remat": "full"},
    {"runtime__dispatcher": "dense"},
    {"log_every_steps": 7},
    {"checkpoint_tokens": 512},
    {"keep_checkpoints": 5},
    {"hang_seconds": 60.0},
]
TOLD = [
    {"budgets_tokens": (2048, 4096, 8192)},
    {"optimizer__learning_rate": 2e-2},
    {"runtime__compute_dtype": "bfloat16"},
    {"microbatches": 2},
    {"loss__router_z": 1e-2},
]
NEVER = [
    {"batch_tokens": 512},
    {"data__sequence_length": 64},
    {"data__packing": "documents"},
    {"optimizer__name": "muon"},
    {"optimizer__moments_dtype": "bfloat16"},
    {"initialisation__std": 0.1},
    {"ema_decay": 0.9},
    {"loss__balance_loads": "previous_step"},
]


@pytest.fixture
def owned(training, tmp_path):
    """The folder of a training that has logged a step."""
    own(tmp_path, training)
    (tmp_path / "metrics.jsonl").touch()
    return tmp_path


@pytest.mark.parametrize("kept", ["metrics.jsonl", "branch-4096.json", "checkpoints/trunk/4/x", "runs/a/metrics.jsonl"])
def test_a_folder_with_anything_trained_is_not_free(training, tmp_path, kept):
    own(tmp_path, training)
    (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / kept).touch()
    with pytest.raises(ValueError, match="belongs to another run"):
        own(tmp_path, changed(training, microbatches=2))


@pytest.mark.parametrize("change", [*TOLD, *NEVER, {"data__text_field": "body"}], ids=lambda change: next(iter(change)))
def test_a_folder_in_which_nothing_was_trained_is_free_for_another_training(training, tmp_path, change):
    own(tmp_path, training)
    (tmp_path / "corpus.json").touch()
    other = changed(training, **change)
    with only_writer(tmp_path), pytest.raises(ValueError, match=r"belongs to another run|do not fit these settings"):
        own(tmp_path, other)
    own(tmp_path, other)
    assert read_json(tmp_path / "training.json", dict, remedy="") == json.loads(json.dumps(other.as_json()))
    assert read_history(tmp_path) == []
    assert not (tmp_path / "corpus.json").exists()


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({"data__sequence_length": 64}, False),
        ({"data__order_seed": 3}, False),
        ({"data__corrupt_share": 0.5}, False),
        ({"data__text_field": "body"}, True),
        ({"data__tokenizer": "ids:100:0"}, True),
        ({"data__validation_share": 0.5}, True),
        ({"data__source": "elsewhere"}, True),
        ({"data__mixture": (WeightedSource(name="web", source="web", weight=1.0),)}, True),
    ],
    ids=str,
)
def test_nothing_in_the_folder_of_tokens_is_removed_and_only_other_tokens_move_it(training, tmp_path, change, moves):
    own(tmp_path, training)
    (tmp_path / "data-old-1").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("of a person")
    said = []
    own(tmp_path, changed(training, **change), log=said.append)
    place = tmp_path / ("data-old-2" if moves else "data")
    assert (place / "notes.txt").read_text() == "of a person"
    assert [str(place) in sentence for sentence in said] == [True] * moves


def test_other_weights_of_a_mixture_keep_its_tokens(training, tmp_path):
    for weight in (1.0, 2.0):
        parts = (
            WeightedSource(name="web", source="web", weight=weight),
            WeightedSource(name="code", source="c", weight=1.0),
        )
        own(tmp_path, changed(training, data__mixture=parts))
        (tmp_path / "data").mkdir(exist_ok=True)
    assert not (tmp_path / "data-old-1").exists()


@pytest.mark.parametrize("change", RESUMABLE, ids=lambda change: next(iter(change)))
def test_how_it_is_computed_may_change_and_is_recorded(training, owned, change):
    other, said = changed(training, **change), []
    own(owned, other, log=said.append)
    assert read_json(owned / "training.json", dict, remedy="") == json.loads(json.dumps(other.as_json()))
    assert other.fingerprint() == training.fingerprint()
    assert len(read_history(owned)) == len(said) == 1
    assert decisive_changes(owned) == []


@pytest.mark.parametrize("change", TOLD, ids=lambda change: next(iter(change)))
def test_what_decides_its_numbers_changes_only_when_told(training, owned, change):
    other = changed(training, **change)
    assert other.fingerprint() != training.fingerprint()
    with pytest.raises(ValueError, match=r"belongs to another run: recipe\..* was .*, is .*--accept-changes"):
        own(owned, other)
    assert read_json(owned / "training.json", dict, remedy="") == json.loads(json.dumps(training.as_json()))
    own(owned, other, accept=True)
    own(owned, other)
    (entry,) = read_history(owned)
    assert decisive_changes(owned) == [entry["changes"]]


def test_a_change_of_numbers_is_refused_if_every_budget_is_trained(training, owned):
    for budget in training.recipe.budgets_tokens:
        (owned / row_file(budget)).touch()
    before = (owned / "training.json").read_bytes()
    said = r"All budgets of .* are trained, so a changed recipe\.optimizer\.learning_rate would train nothing; add a"
    for accept in (False, True):
        with pytest.raises(ValueError, match=said):
            train(changed(training, optimizer__learning_rate=2e-2), owned, accept_changes=accept)
    assert (owned / "training.json").read_bytes() == before
    assert read_history(owned) == []


@pytest.mark.parametrize("change", [*RESUMABLE, {"budgets_tokens": (2048,)}], ids=lambda change: next(iter(change)))
def test_other_settings_may_change_although_every_budget_is_trained(training, owned, change):
    own(owned, changed(training, **change), accept=True, is_finished=True)
    assert len(read_history(owned)) == 1


@pytest.mark.parametrize("change", NEVER, ids=lambda change: next(iter(change)))
def test_what_the_saved_state_depends_on_never_changes(training, owned, change):
    for accept in (False, True):
        with pytest.raises(ValueError, match="do not fit these settings"):
            own(owned, changed(training, **change), accept=accept)


def test_every_difference_is_named_by_its_path(training, owned):
    other = dataclasses.replace(changed(training, optimizer__learning_rate=0.5), seed=3)
    with pytest.raises(ValueError, match=r"seed was 0, is 3"):
        own(owned, other, accept=True)
    with pytest.raises(ValueError, match=r"recipe.optimizer.learning_rate was 0.01, is 0.5"):
        own(owned, changed(training, optimizer__learning_rate=0.5))


def test_a_training_json_edited_by_hand_is_refused(training, owned):
    path = owned / "training.json"
    assert path.read_text().count('"learning_rate": 0.01') == 1
    path.write_text(path.read_text().replace('"learning_rate": 0.01', '"learning_rate": 0.005'))
    for now in (training, changed(training, optimizer__learning_rate=5e-3)):
        with pytest.raises(ValueError, match="was damaged, or changed by hand"):
            own(owned, now, accept=True)


def test_a_folder_older_than_a_setting_has_its_default(training, owned):
    saved = read_json(owned / "training.json", dict, remedy="")
    del saved["recipe"]["keep_every_tokens"]
    write_json(owned / "training.json", saved)
    own(owned, training)
    assert read_history(owned) == []


def test_the_tables_name_settings_that_there_are(training):
    known = training.as_json()
    for path in (*identity.RESUMABLE, *identity.SEMANTIC, *identity.FROZEN):
        here = known
        for part in path.split("."):
            assert part in here, path
            here = here[part]
