"""A study file: what it becomes, and what is said when it is wrong."""

from __future__ import annotations

import textwrap

import pytest

from leakline.errors import StudyError
from leakline.study.spec import built_in, find, load, overlay, parse

GOOD = textwrap.dedent(
    """\
    name = "tiny"
    noise = "seeded"
    seeds = [0, 1]

    [data]
    use = "digits"
    limit = 100
    clients = 4

    [model]
    use = "mlp"
    hidden = [8]

    [training]
    rounds = 3
    epochs = 1
    learning_rate = 0.1

    [strategies]
    fedavg = { use = "fedavg", weighting = "even" }

    [defences]
    none = []
    dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]

    [[attacks]]
    use = "loss-threshold"
    """
)


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def line(text: str, of: str) -> int:
    return next(i for i, each in enumerate(text.splitlines(), 1) if of in each)


# what to replace, by what, the key that must be named, what must be said; the line is where the new text stands
MISTAKES = {
    "typo at the top": ("noise =", "noize =", "noize", 'did you mean "noise"'),
    "a key like no other": ("noise =", "xyzzy =", "xyzzy", "known: attack_minutes, attacks, data, "),
    "typo in data": ("clients = 4", "cleints = 4", "data.cleints", 'did you mean "clients"'),
    "typo in a data set's own key": ("limit = 100", "limt = 100", "data.limt", 'did you mean "limit"'),
    "typo in training": ("rounds = 3", "roundz = 3", "training.roundz", 'did you mean "rounds"'),
    "typo in the plan": (
        "learning_rate = 0.1",
        "learning-rate = 0.1",
        "training.learning-rate",
        'did you mean "learning_rate"',
    ),
    "typo in a defence": (
        "noise_multiplier =",
        "noise_multiplyer =",
        "noise_multiplyer",
        'did you mean "noise_multiplier"',
    ),
    "typo in a strategy": ("weighting =", "weights =", "strategies.fedavg.weights", 'did you mean "weighting"'),
    "typo in the model": ("hidden =", "hiden =", "model.hiden", 'did you mean "hidden"'),
    "typo in an attack": (
        'use = "loss-threshold"',
        'use = "loss-threshold"\nrecord = 5',
        "record",
        'did you mean "records"',
    ),
    "unknown data set": ('use = "digits"', 'use = "digit"', "data.use", 'did you mean "digits"'),
    "unknown model": ('use = "mlp"', 'use = "mlpp"', "model.use", 'did you mean "mlp"'),
    "unknown strategy": ('use = "fedavg"', 'use = "fedavgg"', "strategies.fedavg.use", 'did you mean "fedavg'),
    "unknown defence": ('use = "global-dp"', 'use = "globaldp"', "defences.dp.0.use", 'did you mean "global-dp"'),
    "unknown attack": (
        'use = "loss-threshold"',
        'use = "loss-treshold"',
        "attacks.0.use",
        'did you mean "loss-threshold"',
    ),
    "unknown partitioner": (
        "clients = 4",
        'clients = 4\npartition = "dirichlett"',
        "partition",
        'did you mean "dirichlet"',
    ),
    "unknown loss": (
        "rounds = 3",
        'rounds = 3\nloss = "cross-entrpy"',
        "training.loss",
        'did you mean "cross-entropy"',
    ),
    "unknown optimiser": ("epochs = 1", 'epochs = 1\noptimiser = "adamw"', "training.optimiser", "'sgd' or 'adam'"),
    "unknown noise": ('noise = "seeded"', 'noise = "seed"', "noise", "'secret' or 'seeded'"),
    "unknown sampling": ("rounds = 3", 'rounds = 3\nsampling = "some"', "training.sampling", "'poisson'"),
    "unknown device": ('noise = "seeded"', 'device = "tpu"', "device", "no device"),
    "text for a number": ("rounds = 3", 'rounds = "3"', "training.rounds", "a number is needed"),
    "yes for a number": ("epochs = 1", "epochs = true", "training.epochs", "a number is needed"),
    "a number for a name": ('name = "tiny"', "name = 5", "name", "string"),
    "a list for a number": ("clients = 4", "clients = [4]", "data.clients", "integer"),
    "half a round": ("rounds = 3", "rounds = 2.5", "training.rounds", "integer"),
    "no rounds": ("rounds = 3", "rounds = 0", "training.rounds", "greater than or equal to 1"),
    "no clients": ("clients = 4", "clients = 0", "data.clients", "greater than or equal to 1"),
    "negative epochs": ("epochs = 1", "epochs = -1", "training.epochs", "must be positive"),
    "no learning": ("learning_rate = 0.1", "learning_rate = 0.0", "training.learning_rate", "must be positive"),
    "a rate that is not a number": (
        "learning_rate = 0.1",
        "learning_rate = nan",
        "training.learning_rate",
        "a finite number is needed",
    ),
    "too many participants": (
        "rounds = 3",
        "rounds = 3\nparticipation = 1.5",
        "training.participation",
        "less than or equal to 1",
    ),
    "delta of one": ('noise = "seeded"', "delta = 1.0", "delta", "less than 1"),
    "no delta": ('noise = "seeded"', "delta = 0.0", "delta", "greater than 0"),
    "negative noise": ("noise_multiplier = 1.0", "noise_multiplier = -1.0", "defences.dp.0", "must not be negative"),
    "no clip": ("clip = 1.0", "clip = 0.0", "defences.dp.0", "must be positive"),
    "all for the test": ("clients = 4", "clients = 4\nserver_test = 1.0", "data.server_test", "less than 1"),
    "no seeds": ("seeds = [0, 1]", "seeds = []", "seeds", "at least one seed"),
    "clip is missing": (", clip = 1.0", "", "defences.dp.0.clip", "is needed"),
    "a defence that is a number": ("none = []", "none = 7", "defences.none", "a table is needed"),
    "a defence without use": ("none = []", "none = [{ clip = 1.0 }]", "defences.none.0.use", "is needed"),
    "a table that is a number": (
        '[model]\nuse = "mlp"\nhidden = [8]',
        "[modl]\nuse = 'mlp'",
        "modl",
        'did you mean "model"',
    ),
    "hostile name": ('name = "tiny"', 'name = "../../etc/passwd"', "name", "letters, digits"),
    "a name for a device": ('name = "tiny"', 'name = "CON"', "name", "letters, digits"),
    "an empty name": ('name = "tiny"', 'name = ""', "name", "letters, digits"),
    "missing file": ('use = "digits"\nlimit = 100', 'use = "npz"\npath = "no-such.npz"', "data.path", "there is no"),
    "missing model code": (
        'use = "mlp"\nhidden = [8]',
        'use = "no_such_package.module:make"',
        "model.use",
        "cannot be imported",
    ),
    "hostile import": ('use = "mlp"\nhidden = [8]', 'use = "../../x:make"', "model.use", "not an import path"),
    "incompatible pair": (
        'use = "fedavg", weighting = "even"',
        'use = "fedopt"',
        "strategies.fedavg",
        "server_validation",
    ),
    "two attacks of one name": (
        "[[attacks]]",
        '[[attacks]]\nuse = "loss-threshold"\n[[attacks]]',
        "attacks.1",
        "two attacks",
    ),
    "preset that is a number": ("[[attacks]]", "[presets]\ndesk = 3\n[[attacks]]", "presets", "dictionary"),
    "scenario that is a number": ("[[attacks]]", "[scenarios]\nx = 3\n[[attacks]]", "scenarios", "dictionary"),
    "typo in a scenario": (
        "[[attacks]]",
        "[scenarios.x.training]\nroundz = 3\n[[attacks]]",
        "training.roundz",
        'did you mean "rounds"',
    ),
    "no strategies": ('fedavg = { use = "fedavg", weighting = "even" }', "", "strategies", "at least one"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_every_mistake_is_caught_with_its_line_its_key_and_a_hint(case):
    old, new, key, says = MISTAKES[case]
    text = changed(old, new)
    with pytest.raises(StudyError) as caught:
        parse(text, "my.toml")
    said = str(caught.value)
    assert key in said
    assert says in said
    assert "Traceback" not in said
    if case not in ("unknown device", "no strategies"):
        assert "my.toml:" in said
    if case.startswith(("typo", "unknown", "text", "no ", "negative")) and case not in (
        "unknown device",
        "no strategies",
    ):
        last = new.splitlines()[-1] if "[[" not in new else "roundz"
        assert f"my.toml:{line(text, last)} " in said


def test_there_are_more_than_forty_kinds_of_mistake_and_the_good_file_is_good():
    assert len(MISTAKES) >= 40
    study = parse(GOOD)
    assert len(study.cells) == 4
    assert study.cells[0].federation().rounds == 3


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file():
    text = GOOD
    for old, new in (
        ("noise =", "noize ="),
        ("clients = 4", "cleints = 4"),
        ("hidden =", "hiden ="),
        ("rounds = 3", 'rounds = "x"'),
        ("epochs = 1", "epochz = 1"),
        ("weighting =", "weights ="),
        ("clip = 1.0", "clap = 1.0"),
        ("loss-threshold", "loss"),
    ):
        text = text.replace(old, new)
    with pytest.raises(StudyError) as caught:
        parse(text)
    said = str(caught.value)
    for key in ("noize", "cleints", "hiden", "training.rounds", "epochz", "weights", "clap", "attacks.0.use"):
        assert key in said, key
    numbers = [int(each.split(":")[1].split()[0]) for each in said.splitlines()]
    assert numbers == sorted(numbers)
    assert len(set(said.splitlines())) == len(said.splitlines())


@pytest.mark.parametrize(
    "text",
    ["name = ", "name = 'a'\nname = 'b'", "[data\nuse = 1", "\x00", 'name = "a"\n[[data]]\n[data]', "key = {a = 1, b}"],
)
def test_what_is_not_toml_is_said_with_its_line(text):
    with pytest.raises(StudyError, match="not TOML"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["", "x = 1", "name = 'a'", "data = 3", "name = 'a'\ndata = []\nmodel = 3\ntraining = 4\nattacks = {}"]
)
def test_files_that_are_something_else_are_refused_without_a_traceback(text):
    with pytest.raises(StudyError):
        parse(text)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(StudyError, match="no file"):
        load(str(tmp_path / "no.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(StudyError, match="cannot be read"):
        load(str(tmp_path / "binary.toml"))
    with pytest.raises(StudyError, match="there is no study"):
        load("../../../etc/passwd-x")
    with pytest.raises(StudyError, match="quickstart"):
        load("quikstart")


# --- presets, scenarios, sweeps ------------------------------------------------------------------------------------

PRESETS = GOOD + "\n[presets.desk.training]\nrounds = 2\n[presets.paper.training]\nrounds = 50\nepochs = 5\n"


def test_presets_overlay_the_study_and_desk_is_the_default():
    def rounds(**kw):
        return parse(PRESETS, **kw).cells[0].federation().rounds

    assert rounds() == 2
    assert rounds(preset="paper") == 50
    assert parse(PRESETS, preset="paper").cells[0].federation().plan.epochs == 5
    assert parse('preset = "paper"\n' + PRESETS).cells[0].federation().rounds == 50
    with pytest.raises(StudyError, match='did you mean "paper"'):
        parse(PRESETS, preset="papr")
    with pytest.raises(StudyError, match="desk"):
        parse(GOOD, preset="desk")


def test_a_preset_may_name_the_defences_and_strategies_to_run():
    text = GOOD + "\n[presets.desk]\nseeds = 1\n[presets.desk.defences]\nnone = []\n"
    assert [c.labels["defence"] for c in parse(text).cells] == ["none"]


def test_a_preset_may_leave_out_cells_and_is_whole_all_the_same():
    places = "\n[scenarios.few.data]\nclients = 2\n[scenarios.many.data]\nclients = 6\n"
    study = parse(GOOD + places + '[presets.desk]\nonly = ["scenario=few", "seed=1"]\n[presets.all]\n')
    assert {(c.labels["scenario"], c.labels["seed"]) for c in study.cells} == {("few", 1)}
    assert not study.narrowed  # nobody left anything of it out
    assert len(study.cells) == 2
    assert [c.labels["defence"] for c in study.only(["defence=dp"]).cells] == ["dp"]
    whole = parse(GOOD + places + '[presets.desk]\nonly = ["scenario=few", "seed=1"]\n[presets.all]\n', preset="all")
    assert len(whole.cells) == 8
    with pytest.raises(StudyError, match="only scenario=fw: no cell has scenario = fw"):
        parse(GOOD + places + '[presets.desk]\nonly = ["scenario=fw"]\n')


def test_scenarios_are_an_axis_of_the_grid():
    odd = '{ use = "digits", clients = 3, partition = { use = "dirichlet", alpha = 1.0 } }'
    few, many = ("[scenarios.few.data]\nclients = 2\n", "[scenarios.many.data]\nclients = 6\n")
    text = f"{GOOD}\n{few}{many}[scenarios.odd]\ndata = {odd}\n"
    study = parse(text)
    assert len(study.cells) == 3 * 4
    found = {c.labels["scenario"]: len(c.federation().task.clients) for c in study.cells}
    assert found == {"few": 2, "many": 6, "odd": 3}


def test_sweeps_add_axes_and_their_values_are_labels():
    study = parse(GOOD, sets=["training.rounds=1,2,3", "seeds=1"])
    assert [c.labels["training.rounds"] for c in study.cells] == [1, 1, 2, 2, 3, 3]
    assert {c.federation().rounds for c in study.cells} == {1, 2, 3}
    deep = parse(GOOD, sets=["defences.dp.clip=0.5,2.0", "seeds=1"])
    clips = [c.federation().defences[0].clip for c in deep.cells if c.labels["defence"] == "dp"]
    assert clips == [0.5, 2.0]
    by_place = parse(GOOD, sets=["defences.dp.0.noise_multiplier=3", "seeds=1"])
    assert by_place.cells[1].federation().defences[0].noise_multiplier == 3
    assert parse(GOOD, sets=["model.hidden=[4],[5,6]", "seeds=1"]).cells[-1].federation().model.hidden == (5, 6)
    short = changed('[model]\nuse = "mlp"\nhidden = [8]\n', "")  # model = "mlp" is short for a table
    named = parse('model = "mlp"\n' + short, sets=["model.hidden=[5,6]", "seeds=1"])
    assert named.cells[0].federation().model.hidden == (5, 6)
    assert parse(GOOD, sets=["noise=secret"]).cells[0].federation().noise == "secret"


@pytest.mark.parametrize(
    "item",
    [
        "training.rounds",
        "=3",
        "training.roundz=3",
        "name.x=3",
        "defences.none.clip=3",
        "defences.dp.7.clip=3",
        "training.rounds=x",
        "nonsense=3",
        "training.rounds=",
        "a.b.c.d=1",
        "seeds.0=1",
    ],
)
def test_sweeps_of_what_is_not_there_are_refused(item):
    with pytest.raises(StudyError):
        parse(GOOD, sets=[item])


@pytest.mark.parametrize(("item", "says"), [("nonsense.key=3", "no such key"), ("trainig.rounds=3", "'training'")])
def test_a_sweep_of_an_unknown_table_names_the_nearest(item, says):
    with pytest.raises(StudyError, match=says):
        parse(GOOD, sets=[item])


def test_another_data_set_stands_in_for_one_that_is_not_here(monkeypatch):
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)
    text = GOOD.replace('use = "digits"\nlimit = 100', 'use = "mnist"\notherwise = { use = "digits", limit = 60 }')
    study = parse(text)
    assert any("mnist" in note and "digits" in note for note in study.notes)
    federation = study.cells[0].federation()
    assert federation.task.name == "digits"
    assert len(federation.task.clients) == 4
    with pytest.raises(StudyError, match="LEAKLINE_DATA"):
        parse(GOOD.replace('use = "digits"\nlimit = 100', 'use = "mnist"'))


def test_seeds_may_be_counted_and_the_split_may_follow_the_seed():
    assert len(parse(changed("seeds = [0, 1]", "seeds = 5")).cells) == 10
    for wanted, same in (("0", True), ('"each"', False)):
        study = parse(changed("clients = 4", f"clients = 4\nseed = {wanted}"))
        prints = {c.federation().task.clients[0].train.fingerprint() for c in study.cells}
        assert (len(prints) == 1) is same


def test_overlay_replaces_a_table_that_names_another_entry():
    base = {"model": {"use": "mlp", "hidden": [3]}, "training": {"rounds": 1, "epochs": 2}}
    assert overlay(base, {"model": {"use": "small-cnn"}})["model"] == {"use": "small-cnn"}
    assert overlay(base, {"model": {"hidden": [4]}})["model"] == {"use": "mlp", "hidden": [4]}
    assert overlay(base, {"training": {"rounds": 9}})["training"] == {"rounds": 9, "epochs": 2}
    assert base["training"]["rounds"] == 1


@pytest.mark.parametrize("path", list(built_in().values()), ids=lambda p: p.stem)
def test_built_in_studies_are_good_by_name(path):
    """Also where the data that some of them are about are not on this machine."""
    assert find(path.stem) == path
    study = parse(path.read_text(encoding="utf-8"), path.name, here=False)
    assert study.name == path.stem
    assert study.cells
