"""What the keys of a study's own tables mean, each with an example; keys of menu entries have their docstrings."""

from __future__ import annotations

MEANINGS: dict[str, tuple[str, str]] = {
    # the study
    "name": ("What the run directory is called: letters, digits, `_`, `.`, `-`.", 'name = "our-hospitals"'),
    "title": ("A sentence above the report.", 'title = "Four hospitals"'),
    "seeds": ("Each cell is run once for each seed; a number n stands for 0 to n - 1.", "seeds = [0, 1, 2]"),
    "reproduces": (
        "The paper whose settings these are; only then a delta above 1 / (number of units) is taken.",
        'reproduces = "paper 004"',
    ),
    "delta": ("The delta at which every epsilon is stated.", "delta = 1e-6"),
    "preset": (
        "Which of `presets` to put over the study; the command line's `--preset` goes before it.",
        'preset = "desk"',
    ),
    "noise": (
        '`"secret"` draws protective noise, and who is Poisson-sampled, from the operating system; '
        '`"seeded"` makes runs repeatable and is stamped on the card as not private.',
        'noise = "seeded"',
    ),
    "min_clients": ("Fewer usable answers in a round end the run.", "min_clients = 3"),
    "max_norm": ("A longer update is unusable; 0: none is too long.", "max_norm = 10.0"),
    "on_bad_client": (
        '`"drop"` goes on without a client whose answer is unusable, `"stop"` ends the run before '
        "anything is published.",
        'on_bad_client = "stop"',
    ),
    "device": ("Where it is computed; auto takes a GPU where there is one.", 'device = "cpu"'),
    "data": ("Which data, and how they are shared out: see [data].", 'data = { use = "digits", clients = 5 }'),
    "model": ("The network: an entry of the menu or code of your own.", 'model = { use = "mlp", hidden = [32] }'),
    "models": (
        "Another network for the cells of a defence, by the defence's name.",
        'models.hide-images = "nets:grouped"',
    ),
    "training": (
        "Rounds, cohorts and the clients' local recipe: see [training].",
        "training = { rounds = 20, epochs = 2 }",
    ),
    "warm_start": (
        "The recipe by which the server trains the first model on its validation data, where the strategy "
        "asks for that: the recipe's keys of [training].",
        "warm_start = { epochs = 20 }",
    ),
    "strategies": (
        "How updates become the next model; each is an axis of the grid.",
        'strategies.fedavg = { use = "fedavg" }',
    ),
    "defences": (
        "Stacks of defences by name, each a list that may be empty; an axis of the grid.",
        'defences.dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]',
    ),
    "attacks": (
        "What meets every cell once it is trained; `name` tells two of a kind apart. `strongest`: chosen by seat.",
        'attacks = ["loss-threshold"]',
    ),
    "seats": ("With the strongest attacks: who attacks.", 'attacks = "strongest"\nseats = ["server"]'),
    "attack_minutes": (
        "With the strongest attacks: how long those on a cell may take, in minutes of a nominal machine.",
        'attacks = "strongest"\nattack_minutes = 3',
    ),
    "scenarios": (
        "Tables by name whose keys replace the study's; an axis of the grid. One with `attacks` has those instead.",
        "scenarios.long.training.rounds = 100",
    ),
    "presets": (
        "Tables by name whose keys replace the study's when the preset is chosen; `desk` is chosen by itself.",
        "presets.desk.training.rounds = 5",
    ),
    "only": (
        "The cells to run, by their labels, as `--only` has them: so a preset leaves scenarios out.",
        'only = ["scenario=table-1,table-2", "seed=0"]',
    ),
    # [training], the loop
    "rounds": ("Rounds of the federation.", "rounds = 20"),
    "sampling": (
        "Who takes part in a round: everybody, each client with probability `participation` "
        '(`"poisson"`), or a share of that size (`"fixed"`).',
        'sampling = "poisson"',
    ),
    "participation": ("That probability or share.", "participation = 0.5"),
    "secure_aggregation": (
        '`"assumed"`: the server sees only the sum of a round\'s updates. No protocol is run for it, and '
        "the card says so.",
        'secure_aggregation = "assumed"',
    ),
    "planned": ("For how many clients means are planned; 0: as many as there are.", "planned = 50"),
    "loss": ("What clients minimise; default: what the task's kind has.", 'loss = "dice+ce"'),
    "evaluate": (
        "Who judges the model after each round: the server on its test data, the clients on theirs, or both (the "
        "federation's figures are the server's, each client's stand beside them); auto: the clients where some layers "
        "are personal.",
        'evaluate = "clients"',
    ),
    "average": (
        "Judge utility on an exponential average of the published models, with this weight on the past; 0: on each.",
        "average = 0.9",
    ),
    "validation": (
        '`"server"`: also judge each round by the server\'s validation data, so that tables can show the best round '
        "by them; no promise covers such a choice, and the card says so.",
        'validation = "server"',
    ),
    "patience": ("Stop once the loss has not fallen for so many rounds; 0: never.", "patience = 5"),
    "convolutions": (
        '`"batch-last"`: small plain networks, of images or signals, are computed in another order of memory, a step '
        "in 0.4 to 0.8 of the time (with AVX-512 in up to 1.4 of it), equal to rounding.",
        'convolutions = "batch-last"',
    ),
    "together": ("Small clients in vectorised groups, or one by one.", 'together = "off"'),
    "batches": ("Batch sizes of single clients, by name.", "batches = { north = 8 }"),
    # [training], the recipe
    "epochs": ("Passes of a client over its data in a round.", "epochs = 2"),
    "batch": ("Records in a step; 0: all of a client's.", "batch = 16"),
    "learning_rate": ("Size of a local step.", "learning_rate = 0.1"),
    "optimiser": ("The clients' optimiser; its state does not outlive the round.", 'optimiser = "adam"'),
    "momentum": ("Of SGD.", "momentum = 0.9"),
    "weight_decay": ("Of either optimiser.", "weight_decay = 1e-4"),
    "decay_every": ("After so many rounds the learning rate is multiplied by `decay`; 0: never.", "decay_every = 10"),
    "decay": ("That factor.", "decay = 0.5"),
    "drop_last": ("Leave out a last batch that is not full.", "drop_last = true"),
    "augment": (
        '`"affine"`: train on another version of every image in every step, turned by up to 10 degrees, moved by up to '
        "2 %, every other one mirrored; masks move with images.",
        'augment = "affine"',
    ),
    "amsgrad": ("Adam divides by the largest second moment so far.", 'optimiser = "adam"\namsgrad = true'),
    "max_steps": ("End a client's turn after so many steps; 0: never.", "max_steps = 100"),
    # [data], beside the data set's own keys
    "clients": ("How many clients; partitions by a column or a table know it themselves.", "clients = 10"),
    "partition": (
        "How records come to clients: an entry of the menu of partitions.",
        'partition = { use = "by-column", column = "site" }',
    ),
    "features": (
        "Learn from fixed features of the records, computed once, in place of the records.",
        'features = "scattering"',
    ),
    "plant": (
        "Give half of the clients a trait `planted` of known strength, for attacks on traits to find.",
        'plant = { use = "strength", effect = 2.0, of = "wlk" }',
    ),
    "client_test": (
        "The share of each client's records that it keeps for tests, by whole patients.",
        "client_test = 0.5",
    ),
    "server_validation": (
        "The share that the server keeps for itself: warm starts, and attackers' public records.",
        "server_validation = 0.1",
    ),
    "server_test": ("The share that models are judged by, where the data set has no test part.", "server_test = 0.3"),
    "seed": ('Of splits and partition; `"each"`: the cell\'s own seed.', 'seed = "each"'),
    "otherwise": (
        'The [data] to take where these are not on this machine; `{ use = "nothing" }`: the scenario is left out.',
        'otherwise = { use = "digits" }',
    ),
    "keep_groups": (
        "Keep a patient's records on one side of every split and with one client.",
        "keep_groups = false",
    ),
    "fold": (
        "Test each client on this one of 1 / client_test folds; `-s data.fold=0,1,2,3,4` is a cross-validation.",
        "fold = 0",
    ),
    "train": ("What is trained, by patterns of names; the rest is frozen and does not travel.", 'train = ["head*"]'),
    "lora": ("Train adapters of this rank beside frozen linear and convolution layers.", "lora = { rank = 4 }"),
    "weights": ("A safetensors file that gives some of the values, by name.", 'weights = "net.safetensors"'),
    "pretrain": ("Train on the server's validation data first, by [warm_start].", "pretrain = true"),
}
