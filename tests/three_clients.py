"""A small study and scenarios of it that use what a runtime must carry: state, noise, private layers, parts."""

STUDY = """
name  = "small"
noise = "seeded"
[data]
use     = "digits"
limit   = 240
clients = 3
[model]
use    = "mlp"
hidden = [8]
[training]
rounds        = 3
batch         = 16
learning_rate = 0.3
"""
SCENARIOS = """
[scenarios.plain]
[scenarios.yogi]
strategies = { fedyogi = { use = "fedyogi" } }
defences   = { global-dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 0.5 }] }
[scenarios.personal]
strategies = { fedavg = { use = "fedavg", weighting = "even" } }
[[scenarios.personal.defences.both]]
use  = "fedper"
last = 1
[[scenarios.personal.defences.both]]
use              = "intermediaries"
noise_multiplier = 1.0
clip             = 0.5
parts            = 2
"""
