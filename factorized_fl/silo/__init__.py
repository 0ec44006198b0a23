"""The same methods between organisations, over NVIDIA FLARE. No mathematics here: `methods/` and `engine/` do it.

plan         what the parties agree on: sites.toml, and the kit that each of them gets
kits         keys and certificates for every party, and FLARE's configuration at every start
settings     what a site decides for itself
preflight    what can be found out before a start: a kit that is not whole, a port, the way there
messages     what travels
checks       tensors from somebody else, believed only after a look
updates      a site's answer to a round, as the coordinator reads it
memory       what the coordinator knows of every site
mailbox      the coordinator's open requests and the answers to them
coordinator  rounds with deadlines and a quorum, resumed from a checkpoint
site         one party's state, training and answers, resumed from a checkpoint
trainer      the process a site trains in, which may die alone
keeper       that process as its site sees it
finish       a site's last phase, which needs nobody else
flare        the two components that FLARE runs: a gateway at the coordinator, an agent at each site
supervise    keep a party's FLARE process alive
journal      what happened, one plain line each
status       what a person may want to know meanwhile
"""
