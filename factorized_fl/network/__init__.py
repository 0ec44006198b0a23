"""The same methods between organisations, over NVIDIA FLARE. No mathematics here: `methods/` and `engine/` do it.

plan         what the parties agree on: sites.toml, and the kit that each of them gets
kits         keys and certificates for every party, and FLARE's configuration at every start
messages     what travels, and the checks on whatever arrives
mailbox      the coordinator's open requests and the answers to them
coordinator  rounds with deadlines and a quorum, resumed from a checkpoint
site         one party's state, training and answers, resumed from a checkpoint
trainer      the process a site trains in, which may die alone
flare        the two components that FLARE runs: a gateway at the coordinator, an agent at each site
supervise    keep a party's FLARE process alive
status       what a person may want to know meanwhile
"""
